"""make_secrets makes the Secrets that the tls component mounts, valid for the names in use."""

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from manifests import KUBERNETES, Object, arguments, component_of, name_of, objects_of, pod_of, workloads

if shutil.which("openssl") is None:
    pytest.skip("openssl is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def secrets() -> dict[str, dict[str, bytes]]:
    made = subprocess.run([KUBERNETES / "components" / "tls" / "make_secrets", "outrider"], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    return {name_of(secret): {key: base64.b64decode(value) for key, value in secret["data"].items()}
            for secret in yaml.safe_load_all(made)}


def coordinators_of(objects: list[Object]) -> Object:
    return next(w for w in workloads(objects) if component_of(w) == "coordinator")


def test_each_mounted_secret_is_made_with_the_files_that_flags_name(secrets: dict[str, dict[str, bytes]]) -> None:
    objects = objects_of("pools")
    for workload in workloads(objects):
        (container,) = pod_of(workload)["containers"]
        volumes = {volume["name"]: volume for volume in pod_of(workload)["volumes"]}
        files = {f"{mount['mountPath']}/{key}" for mount in container["volumeMounts"]
                 if "secret" in volumes[mount["name"]]
                 for key in secrets[volumes[mount["name"]]["secret"]["secretName"]]}
        wanted = {value for value in arguments(workload, objects).values() if value.startswith("/etc/outrider/")}
        assert wanted and wanted <= files


def test_certificates_are_good_for_the_names_that_are_asked_for(secrets: dict[str, dict[str, bytes]],
                                                                 tmp_path: Path) -> None:
    """Checks the names with and without pools."""
    objects = objects_of("pools")
    asked = {"coordinator": {"outrider-coordinator", "outrider-coordinators"}}
    both = [arguments(coordinators_of(some), some) for some in (objects, objects_of("cpu"))]
    for name in ("draft", "target"):
        asked[name] = {flags[f"--{name}"].removeprefix("dns:///").rsplit(":", 1)[0] for flags in both}
    assert asked["target"] == {"outrider-target", "outrider-target-0.outrider-target"}
    for name, hosts in asked.items():
        secret = secrets[f"outrider-{name}-tls"]
        (tmp_path / "ca.crt").write_bytes(secret["ca.crt"])
        (tmp_path / "tls.crt").write_bytes(secret["tls.crt"])
        for purpose in ("sslserver", "sslclient"):
            subprocess.run(["openssl", "verify", "-purpose", purpose, "-CAfile", tmp_path / "ca.crt",
                            tmp_path / "tls.crt"], check=True, stdout=subprocess.DEVNULL)
        names = subprocess.run(["openssl", "x509", "-in", tmp_path / "tls.crt", "-noout", "-ext", "subjectAltName"],
                               check=True, stdout=subprocess.PIPE, text=True).stdout
        for host in hosts:
            assert f"DNS:{host}," in names.replace("\n", ",").replace(" ", "")


def test_nothing_is_made_twice(secrets: dict[str, dict[str, bytes]]) -> None:
    keys = [secret["tls.key"] for secret in secrets.values() if "tls.key" in secret]
    assert len(set(keys)) == len(keys) == 3
    assert len(secrets["outrider-client-tokens"]["tokens"].strip()) == 64
    assert len(secrets["outrider-cache-key"]["key"].strip()) == 64
