"""Settings that can't work are refused with the flag's name."""

from pathlib import Path

import pytest

from dra_driver.config import Settings
from dra_driver.model.errors import SettingInvalid


def test_paths_follow_the_kubelets_conventions() -> None:
    settings = Settings(node_name="node-a")
    settings.check()
    assert str(settings.service_socket) == "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock"
    assert str(settings.registration_socket) == (
        "/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock"
    )
    assert settings.pool == "node-a"


def test_an_empty_node_name_is_refused() -> None:
    with pytest.raises(SettingInvalid, match="--node-name is empty"):
        Settings(node_name="").check()


def test_a_socket_path_that_no_kernel_takes_is_refused() -> None:
    folder = Path("/" + "x" * 90)
    with pytest.raises(SettingInvalid, match=r"--kubelet-registrar-directory-path.*107"):
        Settings(node_name="n", registrar_folder=folder).check()
