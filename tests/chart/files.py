"""The files of a pod's container, as Kubernetes would mount them, below a folder."""

import base64
import pathlib
import subprocess
import tempfile


def certificate(folder):
    """A certificate with its key, which is its own authority."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2",
         "-keyout", folder / "tls.key", "-out", folder / "tls.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    made = {name: (folder / name).read_text() for name in ("tls.crt", "tls.key")}
    return {**made, "ca.crt": made["tls.crt"]}


class Cluster:
    """What is rendered, and the Secrets that somebody else made."""

    def __init__(self, objects, secrets):
        self.data = {}
        for one in objects:
            name = one["metadata"]["name"]
            if one["kind"] == "ConfigMap":
                self.data["configMap", name] = one["data"]
            if one["kind"] == "Secret":
                text = {key: base64.b64decode(value).decode() for key, value in one["data"].items()}
                self.data["secret", name] = text
        for name, data in secrets.items():
            self.data["secret", name] = data

    def mount(self, spec, container, root):
        """Writes what the container sees; each folder is at root + its path."""
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            folder = root / mount["mountPath"].lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            volume = volumes.get(mount["name"], {})
            for kind, field in (("configMap", "name"), ("secret", "secretName")):
                if kind in volume:
                    self.write(folder, kind, volume[kind], field)

    def write(self, folder, kind, source, field):
        data = self.data.get((kind, source[field]))
        if data is None:
            # A pod waits for what is not optional.
            assert source.get("optional"), f"no {kind} {source[field]}"
            return
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        mode = source.get("defaultMode", 0o644)
        publish(folder, {item["path"]: data[item["key"]] for item in items}, mode)


def publish(folder, files, mode=0o644):
    """As the kubelet does it: a new folder, and one link that changes at once."""
    version = tempfile.mkdtemp(prefix="..", dir=folder)
    for name, text in files.items():
        path = pathlib.Path(version) / name
        path.write_text(text)
        path.chmod(mode)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(pathlib.Path(version).name)
    fresh.rename(folder / "..data")
    for name in files:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


def within(text, root, folders):
    """The same text, where it names folders, with their places below root."""
    for folder in folders:
        text = text.replace(folder, f"{root}{folder}")
    return text
