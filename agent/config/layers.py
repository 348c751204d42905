"""Merges four layers of settings into one `Config`.

Pure: text and mappings in, `Config` out. The later layer wins:

    preset  <  settings file  <  environment (HALFSEC_LLM_ENGINE__MODEL, PORT)  <  flags

Every layer is a list of single assignments with their origin, so that an error names the place to
correct. An unknown key is an error: otherwise a mistyped setting would have no effect.

pydantic-settings (2.16.3) is not used: importing it and pydantic adds 140 ms of processor time to
the 67 ms in which this package is imported and the settings are read (two cores, 2026-11-23), and
most commands need no pydantic otherwise. Its errors name neither the origin of a value nor the
nearest known key.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, get_type_hints

import languages
from agent.errors import ConfigError
from engine_plugins.reference import is_plugin

from .auto_preset import AUTO, PresetChoice
from .presets import DEFAULT_PRESET, PRESETS, REMOTE_PRESET
from .remote_models import RemoteSection, is_remote, parse_remote, shown_model
from .schema import (
    ASR_TYPES_OF_CPU,
    CHOSEN,
    DEFAULT_AGENT,
    DTYPES_OF_DEVICE,
    FOR_GPUS,
    GPU_DTYPES,
    SECTIONS,
    AgentProfile,
    AsrSettings,
    Config,
    LlmSettings,
    TtsSettings,
)
from .state_address import parse_state_store
from .suggestions import nearest, nearest_setting
from .telephony import TelephonySettings
from .tools import (
    MAX_TOOL_NAME,
    MCP_PREFIX,
    PHONE_PREFIX,
    PHONE_TOOLS,
    McpSettings,
    handoff_tool,
)
from .values import WrongValueError, read_value, shown
from .webhooks import MAX_ENDPOINTS, WebhookSettings, webhook_problem

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of agents, MCP servers and webhook endpoints. An agent's is part of URLs; all are part of
log lines."""

_NAMED: Final[Mapping[str, type]] = MappingProxyType(
    {"agents": AgentProfile, "mcp": McpSettings, "webhooks": WebhookSettings}
)
"""Groups of sections, with names chosen by the operator."""

_OWN: Final = ("handoffs", "handoff_description")
"""Settings of an agent that others don't take from it: they say what it is among them."""

_NOT_SETTINGS: Final = (
    "HALFSEC_HOME",
    "HALFSEC_CONFIG",
    "HALFSEC_API_KEY",
    "HALFSEC_CHROMIUM",
)

_COMPOSE_PASSWORDS: Final = ("HALFSEC_DB_PASSWORD", "HALFSEC_REDIS_PASSWORD")
"""Variables of deploy/compose/compose.yml, which are in the shell of who starts it."""

_KUBERNETES_LINK: Final = re.compile(
    r"HALFSEC_(?![^=]*__)([A-Z0-9_]+_)?("
    r"SERVICE_HOST=[0-9A-Fa-f.:]+|SERVICE_PORT(_[A-Z0-9_]+)?=[0-9]+"
    r"|PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*"
    r"|PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO=(tcp|udp|sctp)|PORT=[0-9]+|ADDR=[0-9A-Fa-f.:]+))"
)
"""Variables that Kubernetes sets in every pod beside a service called "halfsec" or "halfsec-...",
with the values it gives them. "__" would make a setting of the name."""


@dataclass(frozen=True, slots=True)
class _Assignment:
    section: str
    """A section's name, or "agents.NAME", "mcp.NAME" or "webhooks.NAME"."""
    key: str
    value: object
    origin: str
    is_text: bool = False

    @property
    def path(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key


def smallest_preset(num_calls: int) -> PresetChoice:
    """The preset that runs everywhere."""
    return PresetChoice(DEFAULT_PRESET, "nobody looked at it")


def load_config(
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    file_text: str = "",
    file_name: str = "halfsec.toml",
    choose: Callable[[int], PresetChoice] = smallest_preset,
) -> Config:
    """Settings from all layers. `flags` maps "agent.port" to a value or to text. `choose` returns
    the preset that "auto" stands for, with this many calls at once.

    Raises ConfigError for an unknown key, an invalid value, or a file that is not TOML; it names
    the key, its origin, and the nearest known key.
    """
    from_file = _from_file(file_text, file_name)
    from_env = _from_environment(env or {}, from_file)
    from_flags = [_from_dotted(key, value) for key, value in (flags or {}).items()]
    given = [*from_file, *from_env, *from_flags]
    preset = _chosen_preset(given)
    if preset != AUTO:
        return _build([*_from_preset(preset, given), *given])
    given = [each for each in given if each.path != "agent.preset"]
    if (where := _model_elsewhere(given)) is not None:
        origin = f"{CHOSEN}the language model is {where}"
        chosen = [_Assignment("agent", "preset", REMOTE_PRESET, origin)]
        return _build([*_from_preset(REMOTE_PRESET, given), *chosen, *given])
    num_calls = _build([*_from_preset(DEFAULT_PRESET, given), *given]).agent.max_sessions
    choice = choose(num_calls)
    origin = f"{CHOSEN}{choice.reason}"
    chosen = [
        _Assignment("agent", "preset", choice.preset, origin),
        _Assignment("llm_engine", "threads", choice.num_threads, origin),
    ]
    return _build([*_from_preset(choice.preset, given), *chosen, *given])


def _model_elsewhere(given: list[_Assignment]) -> str | None:
    """Where the model that counts, the last one, is computed; None: by the engine of this
    process."""
    models = [str(each.value) for each in given if each.path == "llm_engine.model"]
    if models and is_remote(models[-1]):
        return "on another server"
    return "of a plug-in" if models and is_plugin(models[-1]) else None


def _from_file(text: str, name: str) -> list[_Assignment]:
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # also an integer of thousands of digits
        raise ConfigError(f"{name} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name} has a value that is nested too deeply.") from None
    return list(_from_tables(tables, f"file {name}"))


def _from_preset(name: str, given: Sequence[_Assignment] = ()) -> list[_Assignment]:
    """Settings of a preset, but for "int4" where another language model is given: what rounding
    costs was measured on the preset's own."""
    table = PRESETS[name]
    llm = table.get("llm_engine", {})
    models = [each.value for each in given if each.path == "llm_engine.model"]
    is_own = not models or models[-1] == llm.get("model")
    return [
        each
        for each in _from_tables(table, f"preset {name}")
        if is_own or (each.path, each.value) != ("llm_engine.dtype", "int4")
    ]


def _from_tables(tables: Mapping[str, Any], origin: str) -> Iterator[_Assignment]:
    for section, table in tables.items():
        if section not in _NAMED and section not in SECTIONS:
            if not isinstance(table, Mapping):
                raise ConfigError(
                    f"Unknown setting {section} ({origin}): it stands in no section."
                    f"{_hint(section)}",
                    key=section,
                )
            raise ConfigError(
                f"Unknown section [{section}] ({origin}).{nearest(section, _section_names())}",
                key=section,
            )
        if not isinstance(table, Mapping):
            raise ConfigError(f"{section} must be a section, [{section}] ({origin}).", key=section)
        if section not in _NAMED:
            yield from (_Assignment(section, key, value, origin) for key, value in table.items())
            continue
        for name, inner in table.items():
            if not isinstance(inner, Mapping):
                raise ConfigError(
                    f"{section}.{name} must be a section, [{section}.NAME] ({origin}).", key=name
                )
            yield _Assignment(f"{section}.{name}", "", None, origin)
            for key, value in inner.items():
                yield _Assignment(f"{section}.{name}", key, value, origin)


def _from_environment(
    env: Mapping[str, str], from_file: list[_Assignment]
) -> Iterator[_Assignment]:
    if env.get("PORT"):
        yield _Assignment("agent", "port", env["PORT"], "environment variable PORT", is_text=True)
    named = {a.section for a in from_file if "." in a.section}
    for variable, value in sorted(env.items()):
        if not variable.startswith("HALFSEC_") or variable in _NOT_SETTINGS:
            continue
        if variable in _COMPOSE_PASSWORDS:
            continue
        parts = variable.removeprefix("HALFSEC_").lower().split("__")
        origin = f"environment variable {variable}"
        if _KUBERNETES_LINK.fullmatch(f"{variable}={value}"):
            continue
        if len(parts) == 1:
            raise ConfigError(f"Unknown {origin}.{_variable_hint(parts[0])}", key=variable)
        section = _meant_section(".".join(parts[:-1]), named, origin)
        yield _Assignment(section, parts[-1], value, origin, is_text=True)


def _meant_section(section: str, named: Collection[str], origin: str) -> str:
    """The section that a variable names. A variable has no small letters, "-" or "."; it means the
    agent, MCP server or endpoint of the file that is written alike but for these. Raises
    ConfigError where there are several."""
    if "." not in section:
        return section
    alike = [each for each in named if each.lower() == section] or [
        each for each in named if _as_in_variables(each) == _as_in_variables(section)
    ]
    if len(alike) > 1:
        raise ConfigError(
            f"{origin[0].upper()}{origin[1:]} could mean {' and '.join(sorted(alike))}: set it in "
            "the settings file, or rename one of them.",
            key=section,
        )
    return alike[0] if alike else section


def _as_in_variables(section: str) -> str:
    return section.lower().replace("-", "_").replace(".", "_")


def _from_dotted(dotted: str, value: object) -> _Assignment:
    section, _, key = dotted.rpartition(".")
    return _Assignment(section, key, value, "command line", is_text=isinstance(value, str))


def _chosen_preset(given: list[_Assignment]) -> str:
    chosen = AUTO
    for assignment in given:
        if assignment.path == "agent.preset":
            is_auto = assignment.value == AUTO
            chosen = AUTO if is_auto else str(_checked_preset(assignment))
    return chosen


def _checked_preset(assignment: _Assignment) -> object:
    name = assignment.value
    if not isinstance(name, str) or name not in PRESETS:
        listed = ", ".join([AUTO, *PRESETS] if assignment.path == "agent.preset" else PRESETS)
        raise ConfigError(
            f"{assignment.path} must be one of {listed}, not {shown(name)} ({assignment.origin}).",
            key=assignment.path,
        )
    return name


def _build(assignments: list[_Assignment]) -> Config:
    values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    agents: dict[str, dict[str, Any]] = {DEFAULT_AGENT: {}}
    servers: dict[str, dict[str, Any]] = {}
    endpoints: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for assignment in assignments:
        named = {"agents": agents, "mcp": servers, "webhooks": endpoints}
        table = _table_for(assignment, values, named)
        if assignment.key:
            table[assignment.key] = _value_of(assignment)
            origins[assignment.path] = assignment.origin
    sections: dict[str, Any] = {name: kind(**values[name]) for name, kind in SECTIONS.items()}
    if sections["llm_engine"].max_tokens >= sections["llm_engine"].context:
        raise ConfigError(
            "llm_engine.max_tokens must be below llm_engine.context: the reply has to fit into it.",
            key="llm_engine.max_tokens",
        )
    if sections["agent"].early_openers and not sections["agent"].openers:
        raise ConfigError(
            "agent.early_openers needs agent.openers, which is empty: give some words, like "
            '["Well,"], or leave agent.early_openers off.',
            key="agent.early_openers",
        )
    if sections["agent"].early_openers and not sections["agent"].guess:
        raise ConfigError(
            "agent.early_openers needs agent.guess, which is off: an early opener is spoken only "
            "in front of a reply that is being prepared. Turn agent.guess on, or leave "
            "agent.early_openers off.",
            key="agent.early_openers",
        )
    _check_state_store(sections["agent"].state_store, origins)
    _check_remote(sections["llm_engine"], origins)
    _check_remote_recognizer(sections["asr"], origins)
    _refuse_unused(sections["llm_engine"], origins)
    telephony = sections["telephony"]
    if telephony.on_machine == "message" and not telephony.machine_message.strip():
        raise ConfigError(
            'telephony.on_machine is "message", but telephony.machine_message is empty.',
            key="telephony.machine_message",
        )
    if telephony.record != "no" and not sections["agent"].record_dir:
        raise ConfigError(
            f'telephony.record is "{telephony.record}" ({origins["telephony.record"]}), but '
            "agent.record_dir is not set: nothing would be recorded. Name a directory there, or "
            "leave telephony.record out.",
            key="telephony.record",
        )
    webrtc = sections["webrtc"]
    if bool(webrtc.min_port) != bool(webrtc.max_port) or webrtc.min_port > webrtc.max_port:
        raise ConfigError(
            f"webrtc.min_port ({webrtc.min_port}) and webrtc.max_port ({webrtc.max_port}) are a "
            "range of ports: both, the lower one first, or neither.",
            key="webrtc.max_port",
        )
    profiles = _profiles(agents, origins)
    _check_compute_type(sections["asr"], origins)
    _check_languages(sections["agent"].language, sections["asr"], profiles, origins)
    _check_remote_voices(sections["tts"], profiles, origins)
    _check_handoffs(profiles, origins)
    _refuse_keyless(telephony, profiles)
    mcp = _servers(servers, profiles, telephony)
    webhooks = _webhooks(endpoints, has_store=sections["latency_budget"].store is not False)
    return Config(
        **sections, agents=profiles, mcp=mcp, webhooks=webhooks, origins=MappingProxyType(origins)
    )


def _check_handoffs(profiles: Mapping[str, AgentProfile], origins: Mapping[str, str]) -> None:
    """Raise ConfigError for a handoff to an agent that does not exist or to itself, and for tools
    of handoffs whose names are taken or too long."""
    for agent, profile in profiles.items():
        key = f"agents.{agent}.handoffs"
        where = f"{key} ({origins.get(key, 'default')})"
        taken = {str(each.get("name")) for each in profile.tools}
        for target in profile.handoffs:
            name = handoff_tool(target)
            problem = ""
            if target not in profiles:
                problem = f", and there is no such agent.{nearest(target, list(profiles))}"
            elif target == agent:
                problem = ": an agent can't hand a caller to itself."
            elif name in taken:
                problem = f", but there is another tool {name}; call one of them something else."
            elif len(name) > MAX_TOOL_NAME:
                problem = f": its name is too long for a tool; {name} may have {MAX_TOOL_NAME}."
            if problem:
                raise ConfigError(f"{where} names {shown(target)}{problem}", key=key)
            taken.add(name)


def _refuse_keyless(telephony: TelephonySettings, profiles: Mapping[str, AgentProfile]) -> None:
    """Raise ConfigError where menus are to be navigated and no agent can press keys."""
    given = {tool for profile in profiles.values() for tool in profile.server_tools}
    if telephony.on_menu == "navigate" and f"{PHONE_PREFIX}press_keys" not in given:
        raise ConfigError(
            'telephony.on_menu is "navigate", but no agent can press keys: put "phone:press_keys" '
            "into server_tools of the agent that calls.",
            key="telephony.on_menu",
        )


def _check_state_store(value: str, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for an address that is not one. The value is not repeated: it may hold a
    password."""
    key = "agent.state_store"
    try:
        parse_state_store(value)
    except ValueError as error:
        raise ConfigError(f"{key} {error} ({origins[key]}).", key=key) from None


def _check_languages(
    own: str, asr: AsrSettings, profiles: Mapping[str, AgentProfile], origins: Mapping[str, str]
) -> None:
    """Raise ConfigError for a language that no recognizer knows, and for "auto" where the
    recognizer is not Whisper in this process."""
    recognizer = asr.model
    finds = not (is_remote(recognizer) or is_plugin(recognizer))
    spoken = {f"agents.{name}.language": profile.language for name, profile in profiles.items()}
    loaded = {"asr.language": asr.language} if finds else {}  # others may know more
    for key, language in {**loaded, "agent.language": own, **spoken}.items():
        is_found = language == languages.AUTO
        if not language or (is_found and finds) or languages.is_known(language):
            continue
        what = (
            "only Whisper in this process finds the language of a call, and asr.model is "
            f"{shown(shown_model(recognizer))}, so it must be named"
            if is_found
            else f"no recognizer here knows the language {shown(language)}"
        )
        raise ConfigError(
            f"{key} ({origins.get(key, 'default')}): {what}. Complete: "
            f"{languages.complete_names()}. With recognition and a voice only: the other codes of "
            'Whisper, like "pt" or "it".',
            key=key,
        )


def _check_compute_type(settings: AsrSettings, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for a number format that the recognizer's device does not compute in. A
    plug-in decides for itself."""
    model = settings.local_model
    if settings.device != "cpu" or not model or is_plugin(model):
        return
    if settings.compute_type not in ASR_TYPES_OF_CPU:
        key = "asr.compute_type"
        raise ConfigError(
            f'{key} is "{settings.compute_type}" ({origins.get(key, "default")}), and asr.device '
            f'"cpu" computes in {", ".join(ASR_TYPES_OF_CPU)}: choose one of these, or asr.device '
            '"cuda".',
            key=key,
        )


def _check_remote(settings: LlmSettings, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for a reference to another server that is not one, and for models beside it
    that must be in this process. The value is not repeated: it may hold a password."""
    for name in ("small_model", "draft_model"):
        _refuse_elsewhere(getattr(settings, name), f"llm_engine.{name}", origins)
    if settings.is_own:
        return
    where = "on another server" if is_remote(settings.model) else "of a plug-in"
    _check_reference(settings.model, "llm_engine.model", "llm_engine", origins)
    for name in ("draft_model", "draft_heads"):
        if getattr(settings, name):
            key = f"llm_engine.{name}"
            raise ConfigError(
                f"{key} ({origins[key]}) drafts for a model of this process, and llm_engine.model "
                f"is {where}.",
                key=key,
            )


def _check_remote_recognizer(settings: AsrSettings, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for a recognizer on another server that is none, or that falls back to
    one."""
    _check_reference(settings.model, "asr.model", "asr", origins)
    _refuse_elsewhere(settings.fallback_model, "asr.fallback_model", origins)


def _check_remote_voices(
    settings: TtsSettings, profiles: Mapping[str, AgentProfile], origins: Mapping[str, str]
) -> None:
    """Raise ConfigError for a voice on another server that is none, or that falls back to one, and
    for two voices that clients could not tell apart."""
    _refuse_elsewhere(settings.fallback_voice, "tts.fallback_voice", origins)
    voices = {f"agents.{name}.voice": profile.voice for name, profile in profiles.items()}
    known: dict[str, str] = {}
    for key, voice in {"tts.voice": settings.voice, **voices}.items():
        if voice is None:
            continue
        _check_reference(voice, key, "tts", origins)
        if known.setdefault(shown_model(voice), voice) != voice:
            raise ConfigError(
                f"{key} ({origins.get(key, 'default')}) has the name of another voice, "
                f"{shown(shown_model(voice))}: clients choose voices by their names.",
                key=key,
            )


def _check_reference(
    reference: str, key: str, section: RemoteSection, origins: Mapping[str, str]
) -> None:
    """Raise ConfigError for a reference to another server that is not one. The value is not
    repeated: it may hold a password."""
    if is_remote(reference):
        try:
            parse_remote(reference, section)
        except ValueError as error:
            origin = origins.get(key, "default")
            raise ConfigError(f"{key} {error} ({origin}).", key=key) from None


def _refuse_elsewhere(reference: str, key: str, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for what answers where another model can't, and is on another server or of
    a plug-in itself."""
    if is_remote(reference) or is_plugin(reference):
        raise ConfigError(
            f"{key} ({origins[key]}) must be a model of this process: it answers where another one "
            "can't.",
            key=key,
        )


def _refuse_unused(settings: LlmSettings, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for a `device` that does not compute in `dtype`, and for a GPU setting
    without a GPU. A preset's own is ignored: it may have been meant for another `dtype`."""
    if not settings.has_engine:
        return
    fitting = DTYPES_OF_DEVICE.get(settings.device)
    if fitting is not None and settings.dtype not in fitting:
        raise ConfigError(
            f'llm_engine.device is "{settings.device}", which computes in {", ".join(fitting)}, '
            f'and llm_engine.dtype is "{settings.dtype}": choose one of these, or leave the device '
            "out.",
            key="llm_engine.device",
        )
    if settings.on_gpu:
        return
    usual = LlmSettings()
    for name in FOR_GPUS:
        if name == "calibration" and settings.dtype == "int4":
            continue
        key = f"llm_engine.{name}"
        is_usual = getattr(settings, name) == getattr(usual, name)
        if not (is_usual or origins[key].startswith("preset ")):
            listed = " or ".join(f'"{each}"' for each in GPU_DTYPES)
            raise ConfigError(
                f"{key} ({origins[key]}) is for an NVIDIA GPU, and llm_engine.dtype is "
                f'"{settings.dtype}": with {listed} it has an effect, and with "int4" where the '
                'device is "cuda".',
                key=key,
            )


def _table_for(
    assignment: _Assignment,
    values: dict[str, dict[str, Any]],
    named: Mapping[str, dict[str, dict[str, Any]]],
) -> dict[str, Any]:
    section, _, name = assignment.section.partition(".")
    if section in named and _NAME.fullmatch(name):
        return named[section].setdefault(name, {})
    if section in named:
        whose = {"agents": "an agent's", "mcp": "a server's"}.get(section, "an endpoint's")
        raise ConfigError(
            f"{shown(name)} can't be {whose} name ({assignment.origin}): letters, digits, "
            '".", "_" and "-", at most 64.',
            key=assignment.section,
        )
    if assignment.section not in values:
        raise ConfigError(
            f"Unknown setting {assignment.path} ({assignment.origin}).{_hint(assignment.path)}",
            key=assignment.path,
        )
    return values[assignment.section]


def _value_of(assignment: _Assignment) -> Any:
    """The checked value of an assignment whose section exists."""
    kind = SECTIONS.get(assignment.section) or _NAMED[assignment.section.partition(".")[0]]
    kinds = get_type_hints(kind, include_extras=True)
    if assignment.key not in kinds:
        own = [f"{assignment.section}.{name}" for name in kinds]
        near = _hint(assignment.path, own)
        raise ConfigError(
            f"Unknown setting {assignment.path} ({assignment.origin}).{near}", key=assignment.path
        )
    if assignment.path == f"agents.{DEFAULT_AGENT}.preset":
        raise ConfigError(
            f"{assignment.path} ({assignment.origin}): the default agent's preset is agent.preset.",
            key=assignment.path,
        )
    if assignment.key == "preset":
        return _checked_preset(assignment)
    try:
        return read_value(kinds[assignment.key], assignment.value, is_text=assignment.is_text)
    except WrongValueError as error:
        raise ConfigError(
            f"{assignment.path} {error} ({assignment.origin}).", key=assignment.path
        ) from None


def _profiles(
    agents: dict[str, dict[str, Any]], origins: dict[str, str]
) -> Mapping[str, AgentProfile]:
    """Every agent; missing settings come from its preset or from the default agent."""
    default = agents[DEFAULT_AGENT]
    result = {}
    for name, own in agents.items():
        base: Mapping[str, Any] = default
        base_name = f"agents.{DEFAULT_AGENT}"
        if "preset" in own:
            base_name = f"preset {own['preset']}"
            base = {a.key: _value_of(a) for a in _from_preset(own["preset"]) if _is_default(a)}
        inherited = {
            key: value for key, value in base.items() if key not in own and key not in _OWN
        }
        origins.update({f"agents.{name}.{key}": base_name for key in inherited})
        result[name] = AgentProfile(**inherited, **own)
    return MappingProxyType(result)


def _check_phone_tool(source: str, key: str, telephony: TelephonySettings) -> None:
    """Raise ConfigError for an unknown or unusable tool of telephone calls."""
    if not source.startswith(PHONE_PREFIX):
        return
    if source not in PHONE_TOOLS:
        raise ConfigError(
            f"{key} names {shown(source)}; of telephone calls there are {', '.join(PHONE_TOOLS)}.",
            key=key,
        )
    if source == f"{PHONE_PREFIX}transfer" and not telephony.transfers:
        raise ConfigError(
            f"{key} names {shown(source)}, but telephony.transfers is empty: it says to whom, like "
            '{ sales = "+493012345" }.',
            key=key,
        )


def _servers(
    tables: Mapping[str, Mapping[str, Any]],
    profiles: Mapping[str, AgentProfile],
    telephony: TelephonySettings,
) -> Mapping[str, McpSettings]:
    """The MCP servers. Raises ConfigError where one is invalid, or an agent names an unknown
    one."""
    servers = {name: McpSettings(**table) for name, table in tables.items()}
    for name, server in servers.items():
        if bool(server.url) == bool(server.command):
            problem = "needs a url or a command" if not server.url else "has a url and a command"
            raise ConfigError(f"mcp.{name} {problem}; give one of them.", key=f"mcp.{name}")
        key, kind = ("env", "url") if server.url else ("headers", "command")
        if getattr(server, key):
            raise ConfigError(
                f"mcp.{name}.{key} has no effect on a server with a {kind}; remove it.",
                key=f"mcp.{name}.{key}",
            )
        for each in server.background:
            if server.tools and each not in server.tools:
                raise ConfigError(
                    f"mcp.{name}.background names {shown(each)}, which mcp.{name}.tools leaves "
                    f"out.{nearest(each, list(server.tools))}",
                    key=f"mcp.{name}.background",
                )
    for agent, profile in profiles.items():
        for source in profile.server_tools:
            _check_phone_tool(source, f"agents.{agent}.server_tools", telephony)
            name = source.removeprefix(MCP_PREFIX)
            if name != source and name not in servers:
                raise ConfigError(
                    f"agents.{agent}.server_tools names {shown(source)}, but there is no section "
                    f"[mcp.{name}].{nearest(name, list(servers))}",
                    key=f"agents.{agent}.server_tools",
                )
    return MappingProxyType(servers)


def _webhooks(
    tables: Mapping[str, Mapping[str, Any]], *, has_store: bool
) -> Mapping[str, WebhookSettings]:
    """The webhook endpoints. Raises ConfigError where one can't be used. The address is not
    repeated: some hold a token."""
    endpoints = {name: WebhookSettings(**table) for name, table in tables.items()}
    if len(endpoints) > MAX_ENDPOINTS:
        raise ConfigError(
            f"There are {len(endpoints)} sections [webhooks.NAME], and {MAX_ENDPOINTS} are the "
            "most.",
            key="webhooks",
        )
    for name, endpoint in endpoints.items():
        if (problem := webhook_problem(endpoint)) is not None:
            key = f"webhooks.{name}.{problem[0]}"
            raise ConfigError(f"{key} {problem[1]}.", key=key)
    if endpoints and not has_store:
        raise ConfigError(
            "Webhooks need latency_budget.store, which is false: messages wait there until they "
            "arrive.",
            key="latency_budget.store",
        )
    return MappingProxyType(endpoints)


def _is_default(assignment: _Assignment) -> bool:
    return assignment.section == f"agents.{DEFAULT_AGENT}" and bool(assignment.key)


def _section_names() -> list[str]:
    return [*SECTIONS, *_NAMED]


def _known_keys() -> Iterator[str]:
    for section, kind in SECTIONS.items():
        yield from (f"{section}.{item.name}" for item in fields(kind))
    yield from (f"agents.{DEFAULT_AGENT}.{item.name}" for item in fields(AgentProfile))


def _hint(wrong: str, own: Iterable[str] = ()) -> str:
    """Hint with the nearest setting, `own` of the same section included; else with the command
    that lists all."""
    return nearest_setting(wrong, [*own, *_known_keys()]) or " All of them: halfsec settings."


def _variable_hint(name: str) -> str:
    """Hint with the environment variable that is nearest to an unknown one."""
    others = [variable.removeprefix("HALFSEC_").lower() for variable in _NOT_SETTINGS]
    hint = nearest_setting(name, [*_known_keys(), *others])
    if not hint:
        return " They are called HALFSEC_SECTION__KEY; halfsec settings names them all."
    before, _, meant = hint.rpartition(" ")
    return f"{before} HALFSEC_{meant.replace('.', '__').upper()}"
