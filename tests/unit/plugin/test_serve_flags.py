"""Flags and variables of `dra-driver serve`: the peer's names, and defaults of a plain host."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_driver.cli import serve as command
from dra_driver.cli import settings_options
from dra_driver.config import DEFAULT_CONFIG, Settings, load


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_NAME", "KUBECONFIG", "POD_UID", "LOG_LEVEL", "CDI_ROOT"):
        monkeypatch.delenv(name, raising=False)


def settings_of(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, env: dict[str, str] | None = None
) -> Settings:
    seen: list[Settings] = []
    monkeypatch.setattr(command, "run", seen.append)
    result = CliRunner().invoke(command.serve, arguments, env=env or {})
    assert result.exit_code == 0, result.output
    return seen[0]


def test_defaults_are_those_of_a_plain_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Path("/driver-root").exists()
    assert settings_of(monkeypatch, "--node-name=n") == Settings(node_name="n")


def test_variables_of_published_manifests_work(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(
        monkeypatch,
        env={
            "NODE_NAME": "node-b",
            "CDI_ROOT": "/etc/cdi",
            "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
            "DRIVER_ROOT_CTR_PATH": "/driver",
            "HOST_ROOT": "/host-root",
            "KUBELET_PLUGINS_DIRECTORY_PATH": "/k/plugins",
            "KUBELET_REGISTRAR_DIRECTORY_PATH": "/k/registry",
            "HEALTHCHECK_PORT": "51516",
            "HTTP_ENDPOINT": ":8080",
            "POD_UID": "",
            "LOG_VERBOSITY": "4",
        },
    )
    assert settings == Settings(
        node_name="node-b",
        cdi_root=Path("/etc/cdi"),
        driver_root=Path("/run/nvidia/driver"),
        container_driver_root=Path("/driver"),
        host_root=Path("/host-root"),
        plugins_folder=Path("/k/plugins"),
        registrar_folder=Path("/k/registry"),
        health_port=51516,
        http_endpoint=":8080",
        log_level="info",
    )


def test_without_a_mount_the_driver_is_seen_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch, "--node-name=n", "--nvidia-driver-root=/opt/driver")
    assert settings.container_driver_root == Path("/opt/driver")


def test_a_mounted_driver_root_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings_options, "_IN_CONTAINER", tmp_path)
    settings = settings_of(monkeypatch, "--node-name=n", "--nvidia-driver-root=/opt/driver")
    assert settings.container_driver_root == tmp_path


def test_a_flag_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch, "--node-name=flag", env={"NODE_NAME": "variable"})
    assert settings.node_name == "flag"


@pytest.mark.parametrize(
    ("text", "level"), [("debug", "debug"), ("=4", "info"), ("6", "debug"), ("ERROR", "error")]
)
def test_levels_are_words_or_klogs_numbers(
    monkeypatch: pytest.MonkeyPatch, text: str, level: str
) -> None:
    assert settings_of(monkeypatch, "--node-name=n", f"-v{text}").log_level == level


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("7", 7)]
)
def test_durations_have_units(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    settings = settings_of(monkeypatch, "--node-name=n", f"--poll-interval={text}")
    assert settings.poll_seconds == seconds


def test_a_flag_wins_over_the_configuration_and_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = "apiVersion: config.gpu-dra-driver.dev/v1alpha1\nkind: NodeConfig\n"
    config = load(head + "inventory: {interval: 2m}\nhealth: {ignoreXids: [61, 62]}\n")
    for arguments, env, interval, xids in (
        (("--config=/etc/node.yaml",), {}, 120, {61, 62}),
        (("--poll-interval=30s",), {}, 30, {61, 62}),
        ((), {"ADDITIONAL_XIDS_TO_IGNORE": "63"}, 120, {63}),
    ):
        settings = settings_of(monkeypatch, "--node-name=n", *arguments, env=env)
        settings.check()
        effective = settings.under(config)
        assert (effective.poll_seconds, set(effective.ignored_xids)) == (interval, xids)
        assert settings.under(DEFAULT_CONFIG) == settings
    assert settings_of(monkeypatch, "--node-name=n", "--config=/a/b").config_file == Path("/a/b")
    more = ("--default-config=a", "--fallback-strategies=single, empty")
    settings = settings_of(monkeypatch, "--node-name=n", *more)
    assert (settings.default_config, settings.fallback_strategies) == ("a", ("single", "empty"))
    wrong = CliRunner().invoke(command.serve, ["--node-name=n", "--fallback-strategies=one"])
    assert "'one' is none of named, single, empty" in wrong.output


@pytest.mark.parametrize("text", ["-1s", "0", "nan", "inf", "soon", "3d"])
def test_bad_durations_are_refused(text: str) -> None:
    result = CliRunner().invoke(command.serve, ["--node-name=n", f"--poll-interval={text}"])
    assert result.exit_code == 2
    assert "duration" in result.output


def test_the_plugin_process_loads_no_command_line_extras() -> None:
    """Neither rich nor an evaluator nor the simulator: memory and start time are promised."""
    script = (
        "import sys, dra_driver.cli.serve\n"
        "bad = ('rich', 'cel_expr_python', 'dra_driver.simulator', 'dra_driver.allocation',\n"
        "       'kubernetes.client.models')\n"
        "print([name for name in sys.modules if name.startswith(bad)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
