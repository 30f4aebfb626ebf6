"""Runs the pods of the chart as processes, in a network of their own: test_pods.py starts it. One agent
has its model from a URL, the other one from a repository of a hub."""

import fcntl
import hashlib
import http.server
import json
import os
import pathlib
import socket
import struct
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import chart
from files import Cluster, publish, within

MODEL = chart.ROOT / "inference-core/demo-model/flotilla-demo.gguf"
PROGRAMS = {"flotilla-gateway": os.environ["FLOTILLA_GATEWAY"], "flotilla-agent": os.environ["FLOTILLA_AGENT"]}
FOLDERS = ["/etc/flotilla/", "/var/lib/flotilla/", "/models"]
SOON = 60


def own_network(folder):
    """Brings loopback up, and gives Services their names."""
    with socket.socket() as any_:
        request = struct.pack("16sh", b"lo", 1)  # IFF_UP
        fcntl.ioctl(any_, 0x8914, request)  # SIOCSIFFLAGS
    names = [f"{chart.RELEASE}-flotilla{more}.{chart.NAMESPACE}.svc" for more in ("", "-nodes", "-admin")]
    hosts = pathlib.Path(folder) / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {' '.join(names)}\n")
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "own/Demo-GGUF"
DIGEST = hashlib.sha256(MODEL.read_bytes()).hexdigest()
# What the hub says of the repository.
LISTING = {
    "id": REPOSITORY,
    "sha": COMMIT,
    "siblings": [
        {"rfilename": "README.md", "size": 9},
        {"rfilename": "demo-q4_k_m.gguf", "size": MODEL.stat().st_size, "lfs": {"sha256": DIGEST}},
    ],
}


def hub():
    """Serves the model, at its own URL and as a file of a repository."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=MODEL.parent)

        def do_GET(self):
            if not self.path.startswith(f"/api/models/{REPOSITORY}/revision/main"):
                if self.path == f"/{REPOSITORY}/resolve/{COMMIT}/demo-q4_k_m.gguf":
                    self.path = f"/{MODEL.name}"
                return super().do_GET()
            data = json.dumps(LISTING).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def eventually(what, poll):
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        if found := poll():
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


def get(url, key=None, body=None):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {**headers, "content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Pod:
    """One pod of a workload."""

    def __init__(self, cluster, spec, root):
        self.cluster, self.spec, self.root, self.running = cluster, spec, pathlib.Path(root), []

    def command(self, container):
        self.cluster.mount(self.spec, container, self.root)
        config = self.root / "etc/flotilla/config/gateway.yaml"
        if config.exists():
            config.write_text(within(config.read_text(), self.root, FOLDERS))
        words = [PROGRAMS[word] if word in PROGRAMS else word for word in container["command"] + container["args"]]
        env = {one["name"]: within(one["value"], self.root, FOLDERS) for one in container.get("env", [])}
        return [within(word, self.root, FOLDERS) for word in words], env

    def run(self, container):
        words, env = self.command(container)
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=SOON)
        assert done.returncode == 0, (words, done.returncode, done.stderr)
        return done.stdout

    def start(self):
        for container in self.spec.get("initContainers", []):
            print(self.run(container))
        [container] = self.spec["containers"]
        words, env = self.command(container)
        # Every pod has a host name of its own.
        self.process = subprocess.Popen(words, env={**env, "FLOTILLA_NAME": self.root.name})

    def probe(self, name):
        """As the kubelet would, with names of ports."""
        [container] = self.spec["containers"]
        probe = container[name]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        url = f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}"
        eventually(f"{name} at {url}", lambda: get(url)[0] == 200)

    def stop(self):
        self.process.terminate()
        code = self.process.wait(timeout=self.spec["terminationGracePeriodSeconds"])
        assert code == 0, code


def ask(key, model=MODEL.stem):
    """A client, through the Service."""
    body = {"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    return get("http://fleet-flotilla.inference.svc:8080/v1/chat/completions", key, body)


def new_key(name):
    """As NOTES.txt says: the key, and keys.yaml."""
    command = [PROGRAMS["flotilla-gateway"], "key", "new", "--name", name]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return said.splitlines()[1].strip(), said[said.index("keys:") :]


def main(folder):
    own_network(folder)
    server = hub()
    url = f"http://127.0.0.1:{server.server_port}"
    defaults = {"flags": {"threads": 1, "context-tokens": 512}, "extraEnv": [{"name": "HF_ENDPOINT", "value": url}]}
    pools = {
        "demo": {"model": {"source": f"{url}/{MODEL.name}", "sha256": [DIGEST]}, "listen": "0.0.0.0:8090"},
        "hub": {"model": {"source": f"hf:{REPOSITORY}:Q4_K_M"}, "listen": "0.0.0.0:8091"},
    }
    objects = chart.manifests({"agentDefaults": defaults, "agents": pools})
    cluster = Cluster(objects, {})
    pods = {}
    for name, _, spec in chart.pod_specs(objects):
        pods[name] = Pod(cluster, spec, pathlib.Path(folder) / name)
    gateway, agent, test = pods["fleet-flotilla-gateway"], pods["fleet-flotilla-demo"], pods["fleet-flotilla-test"]
    second = pods["fleet-flotilla-hub"]
    try:
        gateway.start()
        for probe in ("startupProbe", "livenessProbe"):
            gateway.probe(probe)
        agent.start()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            agent.probe(probe)
        gateway.probe("readinessProbe")
        nodes = test.run(test.spec["containers"][0])
        print(nodes)
        assert MODEL.stem in nodes, nodes

        # The Secret of API keys comes, and changes; so does the file that the kubelet makes of it.
        keys = gateway.root / "etc/flotilla/keys"
        key, entries = new_key("first")
        assert not list(keys.iterdir()) and ask(key)[0] == 401
        publish(keys, {"keys.yaml": entries})
        code, said = eventually("the first key", lambda: (answer := ask(key))[0] == 200 and answer)
        print(code, said)
        other, entries = new_key("second")
        publish(keys, {"keys.yaml": entries})
        eventually("the new key", lambda: ask(other)[0] == 200)
        assert ask(key)[0] == 401

        # The repository's model; its pod comes up again without the hub.
        for is_offline in (False, True):
            if is_offline:
                second.stop()
                server.shutdown()
                server.server_close()
            second.start()
            second.probe("readinessProbe")
            eventually("the repository's model", lambda: ask(other, "Demo")[0] == 200)
        second.stop()
        agent.stop()
        gateway.stop()
    finally:
        for pod in (gateway, agent, second):
            if hasattr(pod, "process"):
                pod.process.kill()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
