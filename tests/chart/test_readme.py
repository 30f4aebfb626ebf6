"""The chart's README: its table of values is that of values.yaml. FLOTILLA_UPDATE_DOCS=1 writes it."""

import os
import re
import unittest

import yaml

import chart

BEGIN, END = "<!-- values -->\n\n", "\n<!-- end values -->"


def rows(text):
    """Path, default and comment of each value. Comments stand before their key; lines of examples in them
    are indented."""
    path, comment = [], []
    for line in text.splitlines():
        bare = line.strip()
        depth = (len(line) - len(line.lstrip())) // 2
        if not bare:
            comment = []
        elif bare.startswith("#"):
            if not bare.startswith("#  "):
                comment.append(bare.removeprefix("#").strip())
        else:
            key, _, default = bare.partition(":")
            path = path[:depth] + [key]
            yield ".".join(path), default.strip(), " ".join(comment).removesuffix(":")
            comment = []


def table(text):
    lines = ["| Value | Default | Meaning |", "| --- | --- | --- |"]
    for path, default, comment in rows(text):
        if default or comment:
            shown = f"`{default}`" if default else ""
            lines.append(f"| `{path}` | {shown} | {comment} |")
    return "\n".join(lines) + "\n"


def leaves(value, path=""):
    """Paths of everything that is not a filled object."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from leaves(one, f"{path}.{key}".strip("."))
    else:
        yield path, value


class Readme(unittest.TestCase):
    def test_the_table_of_values_is_that_of_values_yaml(self):
        file = chart.PATH / "README.md"
        readme = file.read_text()
        begin, end = readme.index(BEGIN) + len(BEGIN), readme.index(END)
        made = readme[:begin] + table((chart.PATH / "values.yaml").read_text()) + readme[end:]
        if os.environ.get("FLOTILLA_UPDATE_DOCS"):
            file.write_text(made)
        self.assertEqual(file.read_text(), made, "run 'make docs'")

    def test_the_table_has_every_value_with_its_default(self):
        text = (chart.PATH / "values.yaml").read_text()
        told = {}
        for path, default, _ in rows(text):
            if default:
                told.update(leaves(yaml.safe_load(default), path))
        self.assertEqual(told, dict(leaves(yaml.safe_load(text))))

    def test_its_names_and_commands_are_those_of_the_chart(self):
        readme = (chart.PATH / "README.md").read_text()
        [example] = re.findall(r"```yaml\n(.*?)```", readme, flags=re.S)
        self.assertTrue(chart.manifests(yaml.safe_load(example)))
        for name in re.findall(r"\((\.\./[^)#]+)", readme):
            self.assertTrue((chart.PATH / name).exists(), name)


if __name__ == "__main__":
    unittest.main()
