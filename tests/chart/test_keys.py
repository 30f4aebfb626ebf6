"""Keys that nobody gives are made once and kept, whatever is upgraded. An API server of our own has
the Secret of the first install."""

import base64
import http.server
import json
import threading
import unittest

import yaml
from helm_python import Config

import chart

SECRET = f"{chart.RELEASE}-flotilla-keys"
PATH = f"/api/v1/namespaces/{chart.NAMESPACE}/secrets/{SECRET}"
RESOURCES = {
    "kind": "APIResourceList",
    "groupVersion": "v1",
    "resources": [{"name": "secrets", "singularName": "secret", "namespaced": True, "kind": "Secret", "verbs": ["get"]}],
}


class Server:
    """As much of an API server as Helm's lookup asks."""

    def __init__(self, secret):
        answers = {"/api/v1": RESOURCES, PATH: secret}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                found = answers.get(self.path.split("?")[0])
                missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
                data = json.dumps(found or missing).encode()
                self.send_response(200 if found else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def kubeconfig(self):
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.http.server_port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": chart.NAMESPACE}}
        users = [{"name": "u", "user": {}}]
        whole = {"clusters": [cluster], "users": users, "contexts": [context], "current-context": "c"}
        return json.dumps({"apiVersion": "v1", "kind": "Config", **whole})


def keys(server, values=None):
    """The keys that an install or an upgrade would write."""
    with Config(kubeconfig_content=server.kubeconfig(), namespace=chart.NAMESPACE) as cluster:
        given = {"name": chart.RELEASE, "namespace": chart.NAMESPACE}
        rendered = cluster.render(chart.loaded(), values or {}, **given)
    data = yaml.safe_load(rendered["flotilla/templates/keys.yaml"])["data"]
    return {name: base64.b64decode(text).decode() for name, text in data.items()}


def secret(data):
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": encoded}


class Keys(unittest.TestCase):
    def test_keys_are_made_once_and_kept(self):
        first = keys(Server(None))
        self.assertEqual(sorted(first), ["admin.key", "join.key"])
        self.assertTrue(all(len(key) >= 32 for key in first.values()))
        self.assertNotEqual(first["admin.key"], first["join.key"])
        self.assertNotEqual(first, keys(Server(None)))

        installed = Server(secret(first))
        self.assertEqual(keys(installed), first)
        # One that is given wins, and the other stays.
        given = keys(installed, {"join": {"key": "another-key-for-nodes"}})
        self.assertEqual(given, {**first, "join.key": "another-key-for-nodes"})
        # One that somebody else keeps is not ours to write.
        self.assertEqual(keys(installed, {"join": {"existingSecret": "x"}}), {"admin.key": first["admin.key"]})


if __name__ == "__main__":
    unittest.main()
