"""Packages with plug-ins, installed for one test as pip would leave them: modules, metadata, entry
points."""

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent


@dataclass
class Install:
    """Installs packages: `install("mine", "halfsec.voices", "hum = mine_voice:load", source)`."""

    site: Path
    """Directory of the path of imports."""
    before: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))

    def __call__(self, package: str, group: str, entry: str, source: str = "") -> None:
        """Install a package whose entry point's module has this source, or add an entry point to
        it."""
        metadata = self.site / f"{package.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir(exist_ok=True)
        about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        (metadata / "METADATA").write_text(about)
        with (metadata / "entry_points.txt").open("a") as file:
            file.write(f"[{group}]\n{entry}\n")
        module = entry.partition("=")[2].partition(":")[0].strip()
        (self.site / f"{module}.py").write_text(dedent(source))
        importlib.invalidate_caches()

    def forget(self) -> None:
        """Remove the packages' modules from those that are imported."""
        for name in set(sys.modules) - self.before:
            path = getattr(sys.modules[name], "__file__", None)
            if path is not None and Path(path).is_relative_to(self.site):
                del sys.modules[name]
