"""Receives webhooks, and verifies them with the package of OpenAI: one line of JSON for each.

The path says what it answers: /ok; /once fails the first time; /gone; /moved leads to /ok.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from openai import InvalidWebhookSignatureError, OpenAI

client = OpenAI(api_key="none", webhook_secret=sys.argv[1])
seen = set()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        id = self.headers["webhook-id"]
        try:
            event = client.webhooks.unwrap(body, self.headers)
            line = {"type": event.type, "id": event.id, "object": event.data.id}
        except InvalidWebhookSignatureError as error:
            line = {"type": "refused", "why": str(error)}
        line |= {"path": self.path, "webhook_id": id}
        sys.stdout.write(json.dumps(line) + "\n")  # one write: threads would mix two
        sys.stdout.flush()
        status = {"/ok": 200, "/once": 200 if id in seen else 503, "/gone": 410, "/moved": 307}
        seen.add(id)
        self.send_response(status[self.path])
        if self.path == "/moved":
            self.send_header("location", "/ok")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Receiver)
print(json.dumps({"port": server.server_port}), flush=True)
server.serve_forever()
