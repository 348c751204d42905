"""Settings: which layer wins, what is refused, and what the refusal says."""

import contextlib
import errno
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.layers import load_config
from agent.config.presets import PRESETS
from agent.config.schema import SECTIONS, Config, Example
from agent.config.sources import read_config
from agent.errors import ConfigError


def origin(config: Config, key: str) -> str:
    return next(setting.origin for setting in config.effective() if setting.key == key)


def test_defaults_are_the_embedded_preset() -> None:
    config = load_config()
    plain = Config()
    for section in SECTIONS:
        if section != "llm_engine":
            assert getattr(config, section) == getattr(plain, section)
    assert config.llm_engine.model == plain.llm_engine.model
    assert config.agents["default"].examples
    assert config.agent.host == "127.0.0.1"
    assert config.agent.port == 8080


def test_each_layer_wins_over_the_one_before() -> None:
    file_text = '[llm_engine]\nmodel = "of-file"\n'
    env = {"HALFSEC_LLM_ENGINE__MODEL": "of-environment"}
    flags = {"llm_engine.model": "of-flag"}
    layers: list[Config] = [
        load_config(),
        load_config({"agent.preset": "cpu"}),
        load_config({"agent.preset": "cpu"}, file_text=file_text),
        load_config({"agent.preset": "cpu"}, env, file_text),
        load_config({"agent.preset": "cpu", **flags}, env, file_text),
    ]
    models = [config.llm_engine.model for config in layers]
    assert models == [
        "smollm2-135m-instruct",
        PRESETS["cpu"]["llm_engine"]["model"],
        "of-file",
        "of-environment",
        "of-flag",
    ]
    assert [origin(config, "llm_engine.model") for config in layers] == [
        "preset embedded",
        "preset cpu",
        "file halfsec.toml",
        "environment variable HALFSEC_LLM_ENGINE__MODEL",
        "command line",
    ]


def test_port_of_the_environment() -> None:
    assert load_config(env={"PORT": "9000"}).agent.port == 9000
    assert load_config(env={"PORT": ""}).agent.port == 8080
    both = {"PORT": "9000", "HALFSEC_AGENT__PORT": "9001"}
    assert load_config(env=both).agent.port == 9001
    assert load_config({"agent.port": 9002}, both).agent.port == 9002


@pytest.mark.parametrize(
    ("flags", "env", "file_text", "parts"),
    [
        ({}, {}, "[agnt]\nport = 1", ["[agnt]", "file halfsec.toml", "agent?"]),
        ({}, {}, "[agent]\nprot = 1", ["agent.prot", "file halfsec.toml", "agent.port?"]),
        ({}, {}, "[asr]\nport = 1", ["asr.port", "agent.port?"]),
        ({}, {}, "[telephony]\nport = 1", ["telephony.port", "agent.port?"]),
        ({}, {}, "[agents.bob]\ngreting = ''", ["agents.bob.greting", "agents.bob.greeting?"]),
        ({}, {}, "port = 1", ["Unknown setting port (file halfsec.toml)", "agent.port?"]),
        ({}, {}, "[llm]\nmodel = ''", ["Unknown section [llm]", "llm_engine?"]),
        ({"voice": "x"}, {}, "", ["Unknown setting voice (", "tts.voice?"]),
        ({"llm_engine.temp": 1}, {}, "", ["llm_engine.temperature?"]),
        ({"threds": 1}, {}, "", ["threads?"]),
        ({"asr.thread": 1}, {}, "", ["asr.threads?"]),
        ({"agent.api_key": "x"}, {}, "", ["agent.api_key", "halfsec settings"]),
        ({}, {"HALFSEC_HOM": "/x"}, "", ["Did you mean HALFSEC_HOME?"]),
        ({}, {"HALFSEC_HOST": "x"}, "", ["Did you mean HALFSEC_AGENT__HOST?"]),
        ({}, {"HALFSEC_PASSWORD": "x"}, "", ["HALFSEC_SECTION__KEY"]),
        ({}, {}, "asr = 1", ["[asr]"]),
        ({}, {}, "[agents]\nbob = 1", ["[agents.NAME]"]),
        ({}, {}, "[agents.'a b']", ["'a b'", "name"]),
        ({}, {}, "[asr\n", ["halfsec.toml", "not valid TOML", "line 1"]),
        ({}, {}, "[agents.default]\npreset = 'cpu'", ["agents.default.preset", "agent.preset"]),
        ({}, {"HALFSEC_PORT": "1"}, "", ["HALFSEC_PORT", "HALFSEC_AGENT__PORT?"]),
        ({}, {"HALFSEC_ASR__MODLE": "x"}, "", ["HALFSEC_ASR__MODLE", "asr.model?"]),
        ({}, {"HALFSEC_AST__MODEL": "x"}, "", ["HALFSEC_AST__MODEL", "asr.model?"]),
        ({"agent.prot": 1}, {}, "", ["agent.prot", "command line", "agent.port?"]),
        ({"port": 1}, {}, "", ["Unknown setting port (command line)", "agent.port?"]),
    ],
)
def test_unknown_settings(
    flags: dict[str, object], env: dict[str, str], file_text: str, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(flags, env, file_text)
    assert [part for part in parts if part not in caught.value.message] == []
    assert ("Did you mean" in caught.value.message) == any(part.endswith("?") for part in parts)


@pytest.mark.parametrize(
    ("file_text", "message"),
    [
        ("[agent]\nport = '80'", "agent.port must be a whole number, not '80'"),
        ("[agent]\nport = true", "agent.port must be a whole number, not True"),
        ("[agent]\nport = 70000", "agent.port must be from 0 to 65535, not 70000"),
        ("[agent]\nhost = 1", "agent.host must be text in quotes, not 1"),
        ("[agent]\nallowed_origins = 'x'", "agent.allowed_origins must be a list, not 'x'"),
        ("[agent]\npreset = 'gpu'", "agent.preset must be one of auto, embedded, embedded-0.5b"),
        ("[asr]\ncompute_type = 'int4'", 'asr.compute_type must be one of "int8"'),
        ("[asr]\nlanguage = 'English'", 'asr.language must be a language code like "en"'),
        ("[llm_engine]\ntemperature = 3", "llm_engine.temperature must be from 0 to 2, not 3"),
        ("[llm_engine]\ntemperature = nan", "llm_engine.temperature must be a number"),
        ("[llm_engine]\nmax_tokens = 4096", "llm_engine.max_tokens must be below"),
        ("[agents.a]\nexamples = [{user = 'x'}]", 'a table with "user" and "assistant"'),
        ("[agents.a]\ntools = ['x']", "agents.a.tools must be a table, not 'x'"),
        ("[agents.a]\npreset = 'x'", "agents.a.preset must be one of"),
        ("[agent]\nearly_openers = 1", "agent.early_openers must be true or false, not 1"),
        (
            "[agent]\nallowed_origins = ['voice.example.org']",
            "agent.allowed_origins must be web origins like https://voice.example.com",
        ),
        ("[agent]\nallowed_origins = ['https://a.example/b']", "must be web origins like"),
        ("[agent]\nallowed_origins = ['https://*.example']", "must be web origins like"),
        (
            "[asr]\ncompute_type = 'float16'",
            'asr.compute_type is "float16" (file halfsec.toml), and asr.device "cpu" computes in',
        ),
        (
            "[telephony]\nrecord = 'always'",
            'telephony.record is "always" (file halfsec.toml), but agent.record_dir is not set',
        ),
    ],
)
def test_values_that_do_not_fit(file_text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"halfsec\.toml|below") as caught:
        load_config(file_text=file_text)
    assert message in caught.value.message


def test_early_openers_need_openers_and_guesses() -> None:
    openers = "[agent]\nearly_openers = true\n"
    with pytest.raises(ConfigError, match=r"early_openers needs agent\.openers, which is empty"):
        load_config(file_text=openers)
    openers += 'openers = ["Well,"]\n'
    assert load_config(file_text=openers).agent.early_openers
    with pytest.raises(ConfigError, match=r"early_openers needs agent\.guess, which is off"):
        load_config(file_text=f"{openers}guess = false")


@pytest.mark.parametrize(
    "url",
    ["localhost:4318", "grpc://h:4317", "http://", "http://me:key@h", "http://h?k=1", "http://a b"],
)
def test_no_address_of_a_collector(url: str) -> None:
    with pytest.raises(ConfigError, match="must be empty, or like http://HOST:4318, not "):
        load_config({"latency_budget.otlp_endpoint": url})


@pytest.mark.parametrize("url", ["", "http://localhost:4318", "https://[::1]/api/public/otel"])
def test_the_address_of_a_collector(url: str) -> None:
    assert load_config({"latency_budget.otlp_endpoint": url}).latency_budget.otlp_endpoint == url


@pytest.mark.parametrize(
    ("file_text", "message"),
    [
        ("[agent]\npreset = []", "agent.preset must be one of auto, .* not \\[\\]"),
        (f"[agent]\nport = 1{'0' * 400}", "agent.port must be a whole number"),
        (f"[agent]\nport = 1{'0' * 5000}", "halfsec.toml is not valid TOML"),
        (f"[llm_engine]\ntemperature = 1{'0' * 400}", "temperature must be a number"),
        (f"[agent]\nport = {'[' * 5000}", "halfsec.toml has a value that is nested too deeply"),
    ],
)
def test_values_that_readers_stumble_at(file_text: str, message: str) -> None:
    """Each raised something else than ConfigError."""
    with pytest.raises(ConfigError, match=message):
        load_config(file_text=file_text)


@pytest.mark.parametrize("value", [f"[1{'0' * 5000}]", "[" * 5000])
def test_a_list_of_the_environment_that_readers_stumble_at(value: str) -> None:
    with pytest.raises(ConfigError, match="must be a list as TOML writes it"):
        load_config(env={"HALFSEC_ACCESS__TRUSTED_PROXIES": value})


def test_a_long_wrong_value_is_cut() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"agent.port": "9" * 10_000})
    assert len(caught.value.message) < 200


def test_text_of_the_environment_becomes_what_the_key_takes() -> None:
    env = {
        "HALFSEC_AGENT__ALLOWED_ORIGINS": "https://a.example, https://b.example",
        "HALFSEC_AGENT__TRACE_DIR": "",
        "HALFSEC_LLM_ENGINE__TEMPERATURE": " .5 ",
        "HALFSEC_AGENTS__BOB__EXAMPLES": '[{user = "Hi", assistant = "Hello."}]',
        "HALFSEC_AGENTS__BOB__GREETING": "Hello!",
    }
    config = load_config(env=env)
    assert config.agent.allowed_origins == ("https://a.example", "https://b.example")
    assert config.agent.trace_dir is None
    assert config.llm_engine.temperature == 0.5
    assert config.agents["bob"].examples == (Example("Hi", "Hello."),)
    assert config.agents["bob"].greeting == "Hello!"


def test_the_environment_reaches_an_agent_whose_name_has_capitals() -> None:
    config = load_config(env={"HALFSEC_AGENTS__BOB__GREETING": "Hi"}, file_text="[agents.Bob]")
    assert config.agents["Bob"].greeting == "Hi"
    assert set(config.agents) == {"default", "Bob"}


NAMED = """
[agents.front-desk]
[agents.back_office]
[agents."v1.2"]
[mcp.home-lights]
url = "http://127.0.0.1:9/mcp"
[webhooks.our-crm]
url = "https://crm.example/hook"
"""


def test_the_environment_reaches_names_that_variables_can_not_have() -> None:
    env = {
        "HALFSEC_AGENTS__FRONT_DESK__GREETING": "Hi",
        "HALFSEC_AGENTS__BACK_OFFICE__GREETING": "Yes?",
        "HALFSEC_AGENTS__V1_2__GREETING": "Hm",
        "HALFSEC_MCP__HOME_LIGHTS__TOOLS": "lamp",
        "HALFSEC_WEBHOOKS__OUR_CRM__TRANSCRIPT": "no",
    }
    config = load_config(env=env, file_text=NAMED)
    assert {name: each.greeting for name, each in config.agents.items() if each.greeting} == {
        "front-desk": "Hi",
        "back_office": "Yes?",
        "v1.2": "Hm",
    }
    assert set(config.agents) == {"default", "front-desk", "back_office", "v1.2"}
    assert config.mcp["home-lights"].tools == ("lamp",)
    assert list(config.webhooks) == ["our-crm"]
    assert not config.webhooks["our-crm"].transcript


def test_a_variable_that_could_mean_two_names_is_refused() -> None:
    both = "[agents.front-desk]\n[agents.'front.desk']\n"
    variable = "HALFSEC_AGENTS__FRONT_DESK__GREETING"
    told = "could mean agents.front-desk and agents.front.desk"
    with pytest.raises(ConfigError, match=f"Environment variable {variable} {told}"):
        load_config(env={variable: "Hi"}, file_text=both)
    exact = load_config(env={variable: "Hi"}, file_text=f"{both}[agents.front_desk]\n")
    assert exact.agents["front_desk"].greeting == "Hi"


@pytest.mark.parametrize(
    "variable",
    [
        "HALFSEC_HOME=/x",
        "HALFSEC_CONFIG=/x",
        "HALFSEC_SERVICE_HOST=10.0.0.1",
        "HALFSEC_SERVICE_PORT_HTTP=80",
        "HALFSEC_PORT=tcp://10.0.0.1:80",
        "HALFSEC_PORT_80_TCP=tcp://10.0.0.1:80",
        "HALFSEC_PORT_80_TCP_ADDR=10.0.0.1",
        "HALFSEC_HEAD_SVC_SERVICE_HOST=fd00::1",
        "HALFSEC_HEAD_SVC_SERVICE_PORT_GCS=6379",
        "HALFSEC_HEAD_SVC_PORT=tcp://10.0.0.1:6379",
        "HALFSEC_HEAD_SVC_PORT_6379_TCP_PROTO=tcp",
        "HALFSEC_SERVE_SVC_PORT_8000_TCP_PORT=8000",
        "HALFSEC_REDIS_PORT_5_SCTP=sctp://10.0.0.1:5",
        "HALFSEC_POSTGRES_SERVICE_PORT=5432",
        "HALFSEC_DB_PASSWORD=s3cret",
        "HALFSEC_REDIS_PASSWORD=s3cret",
        "HALFWAY=1",
    ],
)
def test_variables_that_are_no_settings(variable: str) -> None:
    name, _, value = variable.partition("=")
    assert load_config(env={name: value}) == load_config()


@pytest.mark.parametrize(
    "variable",
    [
        "HALFSEC_PORT=9000",
        "HALFSEC_AGENT_PORT=9000",
        "HALFSEC_SERVICE_HOST=voice.example.org",
        "HALFSEC_HEAD__SERVICE_PORT=80",
        "HALFSEC_AGENT__X_PORT=tcp://10.0.0.1:80",
        "HALFSEC_POSTGRES_PASSWORD=s3cret",
    ],
)
def test_variables_that_only_look_like_those_of_a_service(variable: str) -> None:
    name, _, value = variable.partition("=")
    with pytest.raises(ConfigError, match=f"environment variable {name}"):
        load_config(env={name: value})


def test_web_origins_as_browsers_send_them() -> None:
    origins = ["*", "null", "https://A.example:8443/", "capacitor://localhost", "http://[::1]:80"]
    config = load_config(file_text=f"[agent]\nallowed_origins = {origins}")
    assert config.agent.allowed_origins == tuple(origins)


def test_number_formats_are_those_of_the_recognizers_device() -> None:
    on_a_gpu = load_config({"asr.device": "cuda", "asr.compute_type": "float16"})
    assert on_a_gpu.asr.compute_type == "float16"
    of_a_plugin = load_config({"asr.model": "mine:tiny", "asr.compute_type": "float16"})
    assert of_a_plugin.asr.compute_type == "float16"


def test_agents_inherit_from_the_default_one() -> None:
    config = load_config(
        file_text='[agents.default]\ninstructions = "Be kind."\nvoice = "piper-joe"\n'
        '[agents.front-desk]\ngreeting = "Good day."\n'
    )
    name, profile = config.profile("front-desk")
    assert name == "front-desk"
    assert profile.greeting == "Good day."
    assert profile.instructions == "Be kind."
    assert profile.voice == "piper-joe"
    assert origin(config, "agents.front-desk.voice") == "agents.default"


def test_an_agent_may_keep_a_pace_of_its_own() -> None:
    agents = "[agents.curt]\npace_ms = 0\n[agents.shy]\n"
    config = load_config(file_text=f"[agent]\npace_ms = 700\n{agents}")
    paces = {name: config.pace_ms(profile) for name, profile in config.agents.items()}
    assert paces == {"default": 700, "curt": 0, "shy": 700}


def test_an_agent_can_start_from_another_preset() -> None:
    config = load_config(file_text='[agents.clever]\npreset = "cpu"\ngreeting = "Hi."\n')
    clever = config.agents["clever"]
    assert clever.instructions == PRESETS["cpu"]["agents"]["default"]["instructions"]
    assert clever.examples == ()
    assert clever.greeting == "Hi."
    assert origin(config, "agents.clever.instructions") == "preset cpu"


def test_unknown_agents_are_served_by_the_default() -> None:
    config = load_config()
    assert config.profile("gpt-realtime") == ("default", config.agents["default"])
    assert config.profile(None) == ("default", config.agents["default"])


def test_fingerprint_follows_values_not_origins() -> None:
    plain = load_config()
    same = load_config({"agent.port": "8080"})
    assert same.fingerprint() == plain.fingerprint()
    assert load_config({"agent.port": "8081"}).fingerprint() != plain.fingerprint()
    assert load_config({"agents.a.greeting": "x"}).fingerprint() != plain.fingerprint()
    assert len(plain.fingerprint()) == 16


def test_every_effective_setting_can_be_set_again() -> None:
    config = load_config()
    again = load_config(
        {
            setting.key: setting.value
            for setting in config.effective()
            if setting.value is not None and setting.key != "agents.default.examples"
        }
    )
    assert again.fingerprint() == config.fingerprint()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads(name: str) -> None:
    assert load_config({"agent.preset": name}).agent.preset == name


def test_a_preset_s_int4_is_for_its_own_model() -> None:
    """What rounding costs was measured on that one, and a file in Q4_0 would need torch."""
    preset = {"agent.preset": "embedded-0.5b"}
    own = load_config(preset).llm_engine
    assert own.dtype == "int4"
    assert load_config({**preset, "llm_engine.model": own.model}).llm_engine.dtype == "int4"
    other = {**preset, "llm_engine.model": "~/other.gguf"}
    assert load_config(other).llm_engine.dtype == "int8"
    assert load_config({**other, "llm_engine.dtype": "int4"}).llm_engine.dtype == "int4"
    large = {"agent.preset": "gpu-8b", "llm_engine.model": "~/other"}
    assert load_config(large).llm_engine.dtype == "fp8"


@given(st.dictionaries(st.text(string.printable, max_size=12), st.text(max_size=12), max_size=3))
def test_any_environment_loads_or_is_refused_in_words(extra: dict[str, str]) -> None:
    env = {f"HALFSEC_{key.upper()}": value for key, value in extra.items()}
    with contextlib.suppress(ConfigError):
        load_config(env=env)


@given(st.text(max_size=200))
def test_any_file_loads_or_is_refused_in_words(text: str) -> None:
    with contextlib.suppress(ConfigError):
        load_config(file_text=text)


@given(st.sampled_from([setting.key for setting in load_config().effective()]), st.text())
def test_any_text_for_any_key_loads_or_is_refused_in_words(key: str, value: str) -> None:
    with contextlib.suppress(ConfigError):
        load_config({key: value})


def test_reading_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_config({"agent.preset": "cpu"}, env={}) == load_config({"agent.preset": "cpu"})
    (tmp_path / "halfsec.toml").write_text("[agent]\nport = 9000\n")
    other = tmp_path / "other.toml"
    other.write_text("[agent]\nport = 9001\n")
    assert read_config(env={}).agent.port == 9000
    assert read_config(env={"HALFSEC_CONFIG": str(other)}).agent.port == 9001
    named = read_config({}, str(other), env={"HALFSEC_CONFIG": "nowhere"})
    assert origin(named, "agent.port") == f"file {other}"


def test_a_directory_that_is_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_there(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", is_there)
    with pytest.raises(ConfigError, match=r"Can't look for halfsec\.toml in this directory: Perm"):
        read_config(env={})


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config(path=str(tmp_path / "none.toml"), env={})
    with pytest.raises(ConfigError, match="Can't read"):
        read_config(path=str(tmp_path), env={})
    (tmp_path / "latin.toml").write_bytes(b"[agent]\nhost = '\xff'\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(path=str(tmp_path / "latin.toml"), env={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpus", "2"),
        ("kv_dtype", "fp8"),
        ("head_dtype", "fp8"),
        ("calibration", "calls.txt"),
        ("megakernel", "true"),
    ],
)
def test_what_is_for_a_gpu_is_refused_where_none_calculates(name: str, value: str) -> None:
    key = f"llm_engine.{name}"
    with pytest.raises(ConfigError, match="is for an NVIDIA GPU") as caught:
        load_config({key: value})
    assert caught.value.key == key
    assert getattr(load_config({key: value, "llm_engine.dtype": "fp8"}).llm_engine, name)
    if name == "calibration":
        load_config({key: value, "llm_engine.dtype": "int4"})
    on_gpu = {"llm_engine.dtype": "int4", "llm_engine.device": "cuda"}
    assert getattr(load_config({key: value, **on_gpu}).llm_engine, name)
    # A preset's own may be left over.
    load_config({"agent.preset": "gpu-8b", "llm_engine.dtype": "int8"})


def test_a_device_computes_in_its_own_dtypes() -> None:
    for dtype, device, on_gpu in (
        ("int4", "", False),
        ("int4", "cpu", False),
        ("int4", "cuda", True),
        ("fp8", "", True),
        ("fp8", "cuda", True),
    ):
        given = {"llm_engine.dtype": dtype, "llm_engine.device": device}
        assert load_config(given).llm_engine.on_gpu == on_gpu
    for dtype, device in (("int8", "cuda"), ("float32", "cuda"), ("fp8", "cpu")):
        with pytest.raises(ConfigError, match=f'device is "{device}", which computes in') as caught:
            load_config({"llm_engine.dtype": dtype, "llm_engine.device": device})
        assert caught.value.key == "llm_engine.device"


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('url = "https://host/mcp"\nenv = { TOKEN = "MY_TOKEN" }', "mcp.map.env"),
        ('command = ["map"]\nheaders = { Authorization = "MY_KEY" }', "mcp.map.headers"),
    ],
)
def test_settings_of_an_mcp_server_that_have_no_effect_are_refused(table: str, key: str) -> None:
    with pytest.raises(ConfigError, match="has no effect") as caught:
        load_config(file_text=f"[mcp.map]\n{table}\n")
    assert caught.value.key == key


def test_a_key_in_the_address_of_an_mcp_server_is_not_shown() -> None:
    config = load_config(file_text='[mcp.map]\nurl = "https://host/mcp?api_key=SECRET"\n')
    assert config.mcp["map"].url.endswith("?api_key=SECRET")
    shown = {each.key: each.value for each in config.effective()}
    assert shown["mcp.map.url"] == "https://host/mcp?..."
