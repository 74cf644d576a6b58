from __future__ import annotations

from pathlib import Path

import pytest

from dios import limits
from dios.errors import InvalidError
from dios.host.confinement.native_programs import ProgramSetting
from dios.host.process.template_setting import TemplateSetting
from dios.node import machine
from dios.node.limit_text import parse_size
from dios.node.settings import (
    KEYS,
    SANDBOX_LIMITS_DEFAULT,
    LogFormat,
    NodeMode,
    Settings,
    SettingsError,
    load,
)
from dios.wire.messages import Bound
from dios.wire.types import Resource


def write(folder: Path, text: str) -> Path:
    """A node.toml with ``text`` in ``folder``."""
    file = folder / "node.toml"
    file.write_text(text)
    return file


def test_nothing_chosen_gives_the_defaults(tmp_path: Path) -> None:
    """Without file, variables and flags every setting has its default, and paths lie below data."""
    settings = load(tmp_path, environ={})
    assert settings == Settings(tmp_path, tmp_path / "node.sock")
    assert settings.audit == tmp_path / "audit"
    assert settings.pid_file == tmp_path / "node.pid"


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    """A flag beats a variable, a variable beats the file, the file beats the default."""
    write(tmp_path, "pool_size = 1\ntasks_max = 101\nmode = 'restricted'\n")
    environ = {"DIOS_POOL_SIZE": "2", "DIOS_TASKS_MAX": "102", "HOME": "/"}
    settings = load(tmp_path, flags={"pool_size": 3, "mode": None}, environ=environ)
    assert (settings.pool_size, settings.tasks_max, settings.mode) == (3, 102, NodeMode.RESTRICTED)


def test_an_unknown_key_is_refused_with_file_line_and_neighbour(tmp_path: Path) -> None:
    """A misspelled key in a file names the file, the line, and the key that was meant."""
    file = write(tmp_path, "# comment\nmode = 'liberal'\npol_size = 3\n")
    with pytest.raises(SettingsError, match=r"did you mean pool_size\?") as caught:
        load(tmp_path, environ={})
    assert f"{file}:3" in str(caught.value)


def test_an_unknown_variable_is_refused_as_it_was_written(tmp_path: Path) -> None:
    """A misspelled variable is answered in the spelling of variables; those of the client are not ours."""
    with pytest.raises(SettingsError, match=r"DIOS_TASK_MAX.*did you mean DIOS_TASKS_MAX\?"):
        load(tmp_path, environ={"DIOS_TASK_MAX": "1"})
    load(tmp_path, environ={"DIOS_NODE": "/somewhere"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pool_size = 'many'", "a whole number"),
        ("pool_size = true", "a whole number"),
        ("pool_size = -1", "between 0"),
        ("tasks_max = 0", "between 1"),
        ("task_memory_bytes = '4 bananas'", "a size like"),
        ("task_memory_bytes = '1 KiB'", "between"),
        ("mode = 'strict'", "liberal, restricted"),
        ("accept_weaker_sandbox = 'perhaps'", "true or false"),
        ("preload = ['os; import sys']", "importable modules"),
        ("preload = 3", "a list"),
        ("allowed_uids = ['root']", "a whole number"),
        ("socket = 7", "a path"),
        ("log_level = 'loud'", "debug, info, warning, error"),
        ("pool_size = ", "not valid TOML"),
        ("[pool_size]\nx = 1", "a whole number"),
        ("pool_size = 8\ntasks_max = 4", "over tasks_max"),
        ("name = ''", "up to 63 letters"),
        ("name = 'two words'", "up to 63 letters"),
        ("name = 7", "a name"),
        ("rack = '-r'", "up to 63 letters"),
        ("listen = '7400'", "HOST:PORT"),
        ("listen = '10.0.0.1:0'", "a port from 1"),
        ("listen = 'fd00::1:7400'", "HOST:PORT"),
        ("listen = '10.0.0.1:7400'\nadvertise = '0.0.0.0:7400'", "other machines can reach"),
        ("listen = '[::]:7400'", "set advertise"),
        ("advertise = '10.0.0.1:7400'", "set listen"),
    ],
)
def test_a_bad_value_is_refused_with_what_would_do(tmp_path: Path, text: str, says: str) -> None:
    """A value of the wrong kind or size is refused, and the message says what is accepted."""
    write(tmp_path, text)
    with pytest.raises(SettingsError, match=says):
        load(tmp_path, environ={})


def test_a_config_file_that_was_asked_for_must_exist(tmp_path: Path) -> None:
    """A missing node.toml is fine; a missing --config is not."""
    with pytest.raises(SettingsError, match="does not exist"):
        load(tmp_path, config=tmp_path / "other.toml", environ={})


def test_a_paths_base_is_where_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path in the file is below data; one on the command line is below the working directory."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    write(tmp_path, "log_file = 'logs/node.log'\n")
    settings = load(tmp_path, flags={"record": "events"}, environ={})
    assert settings.log_file == tmp_path / "logs" / "node.log"
    assert settings.record == here / "events"


def test_sizes_may_be_written_for_people(tmp_path: Path) -> None:
    """Sizes are bytes or carry a binary unit, in the file and in variables alike."""
    write(tmp_path, "map_bytes = '2 GiB'\nlog_format = 'json'")
    settings = load(
        tmp_path, environ={"DIOS_TASK_MEMORY_BYTES": "512mib", "DIOS_PRELOAD": "json, email.message"}
    )
    assert settings.map_bytes == 2 * limits.GIB
    assert settings.task_memory_bytes == 512 * limits.MIB
    assert settings.preload == ("json", "email.message")
    assert settings.log_format is LogFormat.JSON
    assert parse_size("1_024") == 1024


def test_every_key_is_a_field() -> None:
    """Each key sets a field of that name, and each field but the data directory has a key."""
    assert {"data", *KEYS} == set(Settings.__slots__)


def test_the_page_names_every_key() -> None:
    """docs/settings.md has a row for every key, and no row for anything else."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "settings.md").read_text()
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == list(KEYS)


def test_limits_are_read_from_everywhere_alike(tmp_path: Path) -> None:
    """Limits come as a table in the file, as text in the environment and on the command line."""
    write(tmp_path, "[task_limits]\nobjects = 10\nbytes = '1 KiB'\n")
    settings = load(
        tmp_path,
        environ={"DIOS_GROUP_LIMITS": "objects=10 bytes=1KiB"},
        flags={"principal_limits": "objects=10, bytes=1 KiB"},
    )
    wanted = (Bound(Resource.OBJECTS, 10), Bound(Resource.BYTES, 1024))
    assert settings.task_limits == settings.group_limits == settings.principal_limits == wanted


def test_limits_of_sandboxes_keep_their_defaults(tmp_path: Path) -> None:
    """A setting replaces the limits that it names, and flags replace the environment; 0 is refused."""
    write(tmp_path, "[sandbox_limits]\nobjects = 10\nmemory = '1 GiB'\nreferences = 'none'\n")
    values = {bound.resource: bound.value for bound in load(tmp_path, environ={}).sandbox_limits}
    defaults = {bound.resource: bound.value for bound in SANDBOX_LIMITS_DEFAULT}
    own = {Resource.OBJECTS: 10, Resource.MEMORY_BYTES: 2**30, Resource.REFERENCES: None}
    assert values == defaults | own
    environ = {"DIOS_SANDBOX_LIMITS": "objects=20"}
    settings = load(tmp_path, environ=environ, flags={"sandbox_limits": "tasks=3"})
    assert {bound.resource: bound.value for bound in settings.sandbox_limits} == defaults | {
        Resource.TASKS: 3
    }
    for wrong, told in (("objects=0", "give 1 or more"), ("object=3", r"did you mean objects\?")):
        with pytest.raises(SettingsError, match=told):
            load(tmp_path, environ={}, flags={"sandbox_limits": wrong})


def test_a_bad_limit_is_told_with_its_place(tmp_path: Path) -> None:
    """A misspelled resource names the file, the line of the table, and what was meant."""
    file = write(tmp_path, "pool_size = 1\n[group_limits]\nobjets = 10\n")
    with pytest.raises(SettingsError, match=r"did you mean objects\?") as caught:
        load(tmp_path, environ={})
    assert f"{file}:2" in str(caught.value)


def test_what_a_cluster_needs_is_read_from_everywhere_alike(tmp_path: Path) -> None:
    """Name, rack and addresses come from file, environment and flags; others are told one address."""
    write(tmp_path, "name = 'n1'\nrack = 'r1'\nlisten = '0.0.0.0:7400'\n")
    settings = load(tmp_path, environ={"DIOS_ADVERTISE": "[FD00::1]:7400"}, flags={"announce": "yes"})
    assert (settings.name, settings.rack, settings.listen) == ("n1", "r1", "0.0.0.0:7400")
    assert settings.address == "[fd00::1]:7400"
    assert settings.announce
    assert settings.identity == tmp_path / "identity"


def test_a_lone_node_listens_nowhere(tmp_path: Path) -> None:
    """Without settings a node has a name, and no address."""
    settings = load(tmp_path, environ={})
    assert settings.name == machine.host_name()
    assert not settings.address


@pytest.mark.parametrize(
    ("text", "rate"),
    [("'125 MiB'", 125 * limits.MIB), ("2_000_000", 2_000_000), ("'auto'", 0), ("'AUTO'", 0)],
)
def test_rates_are_bytes_per_second(tmp_path: Path, text: str, rate: int) -> None:
    """What link and store carry is a size like any other, or the word for what is seen."""
    write(tmp_path, f"link_rate = {text}\nstore_rate = {text}")
    settings = load(tmp_path, environ={})
    assert (settings.link_rate, settings.store_rate) == (rate, rate)
    assert (load(tmp_path / "none", environ={}).link_rate) == 0


@pytest.mark.parametrize("text", ["0", "'1 KiB'", "'fast'", "true", "-5"])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """A rate below what the slowest principal is given, and what is no size, is named with its line."""
    write(tmp_path, f"store_rate = {text}")
    with pytest.raises(SettingsError, match=r"node\.toml:1: store_rate must be"):
        load(tmp_path, environ={})


@pytest.mark.parametrize(
    ("text", "rate"), [("", 8 * limits.MIB), ("'off'", 0), ("false", 0), ("'64 MiB'", 64 * limits.MIB)]
)
def test_scrubbing_has_a_rate_or_is_off(tmp_path: Path, text: str, rate: int) -> None:
    """The default is small; off is a word, as the other rates have one."""
    write(tmp_path, f"scrub_rate = {text}\n" if text else "")
    settings = load(tmp_path, flags={"scrub_every": "1d"}, environ={})
    assert (settings.scrub_rate, settings.scrub_every) == (rate, 86_400_000)
    with pytest.raises(SettingsError, match="scrub_rate"):
        load(tmp_path, flags={"scrub_rate": "0"}, environ={})


def test_templates_are_tables_or_text(tmp_path: Path) -> None:
    """A table has modules and memory; text, in the environment or an option, has the modules alone."""
    write(tmp_path, "[templates.data]\nmodules = ['numpy', 'a.b']\nmemory = '256 MiB'\n")
    assert load(tmp_path, environ={}).templates == (TemplateSetting("data", ("numpy", "a.b"), 256 << 20),)
    environ = {"DIOS_TEMPLATES": "data=numpy,polars plots=matplotlib"}
    assert load(tmp_path, environ=environ).templates == (
        TemplateSetting("data", ("numpy", "polars")),
        TemplateSetting("plots", ("matplotlib",)),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[templates.data]\nmodule = ['numpy']", r"did you mean modules\?"),
        ("[templates.data]\nmemory = '1 GiB'", "has no modules"),
        ("[templates.data]\nmodules = []", "has no modules"),
        ("[templates.data]\nmodules = ['os; x']", "names of importable modules"),
        ("[templates.data]\nmodules = 5", "must be a list"),
        ("[templates.data]\nmodules = ['a']\nmemory = 1", "must be between"),
        ("[templates.'a b']\nmodules = ['a']", "a template's name"),
        ("templates = ['numpy']", "tables like"),
        ("templates.data = 'numpy'", "must be a table"),
        ("[templates]\n" + "\n".join(f"t{n}.modules = ['a']" for n in range(17)), "at most 16 templates"),
    ],
)
def test_a_template_that_means_nothing_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """Unknown keys, missing modules, sizes out of range and odd names are errors of the settings."""
    write(tmp_path, text)
    with pytest.raises(SettingsError, match=why):
        load(tmp_path, environ={})


def test_programs_are_tables_or_text(tmp_path: Path) -> None:
    """A table has the path and what it reads; text has the paths alone."""
    write(tmp_path, "[programs.awk]\npath = '/usr/bin/awk'\nread = ['/usr/share/awk']\n")
    assert load(tmp_path, environ={}).programs == (
        ProgramSetting("awk", "/usr/bin/awk", ("/usr/share/awk",)),
    )
    environ = {"DIOS_PROGRAMS": "awk=/usr/bin/awk sort=/usr/bin/sort"}
    assert [program.name for program in load(tmp_path, environ=environ).programs] == ["awk", "sort"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[programs.awk]\npaht = '/usr/bin/awk'", r"did you mean path\?"),
        ("[programs.awk]\nread = ['/usr']", "absolute paths"),
        ("[programs.awk]\npath = 'awk'", "absolute paths"),
        ("[programs.awk]\npath = '/usr/bin/awk'\nread = ['share']", "absolute paths"),
        ("[programs.'../sh']\npath = '/bin/sh'", "a program's name"),
        ("programs = ['/bin/sh']", "tables like"),
        ("programs.sh = '/bin/sh'", "must be a table"),
        ("[programs]\n" + "\n".join(f"p{n}.path = '/a'" for n in range(65)), "at most 64 programs"),
    ],
)
def test_a_program_that_means_nothing_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """Unknown keys, relative paths and odd names are errors of the settings."""
    write(tmp_path, text)
    with pytest.raises(SettingsError, match=why):
        load(tmp_path, environ={})


def test_users_of_metrics_over_tls_are_refused(tmp_path: Path) -> None:
    """Over TLS certificates decide who reads the metrics, so that naming users is a mistake."""
    text = "metrics = '127.0.0.1:9464'\nmetrics_tls = ['/c', '/k', '/a']\nmetrics_uids = [7]"
    write(tmp_path, text)
    with pytest.raises(InvalidError, match="metrics_uids"):
        load(tmp_path, environ={})
