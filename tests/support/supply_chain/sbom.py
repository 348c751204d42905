"""`make sbom`: the software bill of materials, CycloneDX in JSON.

    python -m tests.support.supply_chain.sbom CYCLONEDX_PY PYTHON FILE

cyclonedx-py lists the packages of an environment; the models that halfsec knows by name, with the
hashes of their files, are added here, and what comes with halfsec itself.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from agent.cli.licences import PERMISSIVE, VENDORED
from agent.stages.model_store.catalogue import Model, ModelStore

ROOT: Final = Path(__file__).resolve().parents[3]


def main(argv: Sequence[str]) -> int:
    tool, python, file = argv
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            *(tool, "environment", python, "--pyproject", str(ROOT / "pyproject.toml")),
            *("--output-format", "JSON", "--output-reproducible", "--output-file", file),
        ],
        check=True,
    )
    bill = json.loads(Path(file).read_text(encoding="utf-8"))
    bill["components"] = [*bill["components"], *further_components()]
    Path(file).write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    kinds = [each["type"] for each in bill["components"]]
    print(f"{file}: {', '.join(f'{kinds.count(kind)} {kind}' for kind in sorted(set(kinds)))}")
    return 0


def further_components() -> list[dict[str, Any]]:
    """Models of the catalogue, and files that come with halfsec."""
    models = map(_model, ModelStore().catalogue.values())
    files = [
        {
            "type": "library",
            "bom-ref": f"vendored:{part.name.partition(' ')[0]}",
            "name": part.name.partition(" ")[0],
            "version": part.name.partition(" ")[2],
            "description": part.note,
            "licenses": _licences(part.licence),
        }
        for part in VENDORED
    ]
    return [*models, *files]


def _model(model: Model) -> dict[str, Any]:
    files = [
        {
            "type": "file",
            "bom-ref": f"model:{model.name}/{file.name}",
            "name": file.name,
            "hashes": [{"alg": "SHA-256", "content": file.sha256}],
        }
        for file in model.files
    ]
    found: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": f"model:{model.name}",
        "name": model.name,
        "description": model.about,
        "licenses": _licences(model.licence),
    }
    if model.revision:
        found["version"] = model.revision
    return {**found, "components": files} if files else found


def _licences(licence: str) -> list[dict[str, Any]]:
    return [{"license": {"id" if licence in PERMISSIVE else "name": licence}}]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
