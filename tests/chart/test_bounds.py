"""The schema's bounds are those of the gateway: what is just inside both take, what is just outside
neither does."""

import copy
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import jsonschema
import yaml

import chart
from files import certificate
from test_values import reference, with_one_certificate

NONSENSE = "certainly-not-one-of-these"


def named_files(value):
    """Files that a configuration names."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key.endswith("_file"):
                yield one
            yield from named_files(one)
    if isinstance(value, list):
        for one in value:
            yield from named_files(one)


def put(config, path, value):
    """The configuration with another value; a path is keys, and [] for the first item."""
    changed = copy.deepcopy(config)
    at = changed
    for key in path[:-1]:
        at = at[0] if key == "[]" else at[key]
    at[path[-1]] = value
    return changed


def trials(schema):
    """Values just inside, and just outside."""
    if "enum" in schema:
        return schema["enum"], [NONSENSE]
    least, most = schema.get("minimum"), schema.get("maximum")
    inside = [n for n in (least, most) if n is not None]
    outside = [least - 1] if least is not None else []
    return inside, outside + ([most + 1] if most is not None else [])


OTHER_FILES = {
    "url": "postgres://flotilla:secret@localhost/flotilla",
    "keys": "ab" * 32,
    "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}


class Bounds(unittest.TestCase):
    def setUp(self):
        self.schema = json.loads((chart.PATH / "values.schema.json").read_text())
        self.config = self.schema["properties"]["gateway"]["properties"]["config"]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        made = certificate(self.folder / "made")
        for name in named_files(reference()):
            is_private = name.endswith("key.pem")
            is_key = name.endswith(".key")
            text = "a-key-of-sixteen-or-more" if is_key else made["tls.key" if is_private else "tls.crt"]
            text = OTHER_FILES.get(name.rsplit(".")[-1], text)
            if not name.endswith((".yaml", ".json")):
                (self.folder / name).write_text(text)
                (self.folder / name).chmod(0o600)

    def resolve(self, schema):
        name = schema.get("$ref", "").removeprefix("#/definitions/")
        return self.schema["definitions"][name] if name else schema

    def bounded(self, schema, path=()):
        schema = self.resolve(schema)
        for key, one in schema.get("properties", {}).items():
            yield from self.bounded(one, (*path, key))
        if isinstance(self.resolve(schema.get("items", {})).get("properties"), dict):
            yield from self.bounded(schema["items"], (*path, "[]"))
        if {"minimum", "maximum", "enum"} & schema.keys():
            yield path, schema

    def gateway_says(self, config):
        file = self.folder / "gateway.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [os.environ["FLOTILLA_GATEWAY"], "check", "--config", file]
        return subprocess.run(command, capture_output=True, text=True).stderr

    def schema_takes(self, path, value):
        whole = {**self.config, "definitions": self.schema["definitions"]}
        validator = jsonschema.Draft7Validator(whole)
        config = put(reference(), path, value)
        wrong = [list(error.absolute_path) for error in validator.iter_errors(config)]
        return [0 if key == "[]" else key for key in path] not in wrong

    def test_what_the_schema_takes_the_gateway_takes_and_the_reverse(self):
        wholes = {acme: with_one_certificate(reference(), acme=acme) for acme in [False, True]}
        for whole in wholes.values():
            self.assertEqual(self.gateway_says(whole), "")
        tried = 0
        for path, schema in self.bounded(self.config):
            whole = wholes[path[:2] == ("tls", "acme")]
            shown = ".".join(path).replace(".[]", "[0]")
            inside, outside = trials(schema)
            for value in inside:
                self.assertTrue(self.schema_takes(path, value), (shown, value))
                self.assertEqual(self.gateway_says(put(whole, path, value)), "", (shown, value))
            for value in outside:
                self.assertFalse(self.schema_takes(path, value), (shown, value))
                self.assertIn(shown, self.gateway_says(put(whole, path, value)), (shown, value))
            tried += 1
        self.assertGreater(tried, 35)


if __name__ == "__main__":
    unittest.main()
