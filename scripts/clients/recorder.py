"""Proxy between a client program and a daemon, which records the client's requests.

A recording is a file of JSON lines, one for each request. What differs between two daemons is a
placeholder: references and UUIDs by what they name, sessions and tasks by the request that began
them, tokens of events, the password. `crates/daemon/tests/suite/clients` sends them again.
"""

import http.client
import http.server
import json
import re
import threading
import urllib.parse
import xmlrpc.client

REF = re.compile(r"OpaqueRef:[0-9a-f-]{36}")
UUID = re.compile(r"(?<![0-9a-f:-])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TOKEN = re.compile(r'"token":"([^"]+)"|<name>token</name><value>(?:<string>)?([^<]+)<')
# Headers that a server may look at.
HEADERS = ["Content-Type", "User-Agent"]
# Parts of calls whose answer is a session or a task.
REFERRED = ["session.login_with_password", "task.create", "Async."]
# Fields that identify an object, by class. A class without a row has one object.
IDENTITY = {
    "VM": ["name_label"],
    "VDI": ["name_label"],
    "SR": ["name_label"],
    "network": ["name_label"],
    "VBD": ["VM", "userdevice"],
    "VIF": ["VM", "device"],
    "PIF": ["device"],
}


class Recorder:
    """Proxy on a free port of this host."""

    def __init__(self, host, port, user, password):
        self.to = (host, port)
        self.password = password
        self.lock = threading.Lock()
        self.lines = []
        self.failure = None
        self.names = {}
        self.admin = xmlrpc.client.ServerProxy(f"http://{host}:{port}")
        self.session = self.admin.session.login_with_password(user, password)["Value"]
        recorder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                recorder.forward(self)

            do_GET = do_PUT = do_POST

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def forward(self, handler):
        """Records a request, forwards it, and answers."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0))).decode()
        with self.lock:
            path = self.generalise(urllib.parse.unquote(handler.path))
            line = {"method": handler.command, "path": path}
            line["headers"] = {n: handler.headers[n] for n in HEADERS if handler.headers[n]}
            line["body"] = self.generalise(body)
            for former in self.lines:
                if "outcome" not in former:
                    former["overlaps"] = True
            number = len(self.lines)
            self.lines.append(line)
        connection = http.client.HTTPConnection(*self.to)
        kept = {name: value for name, value in handler.headers.items() if name != "Host"}
        connection.request(handler.command, handler.path, body.encode(), kept)
        response = connection.getresponse()
        answer = response.read().decode()
        with self.lock:
            line["outcome"] = outcome(handler, response.status, answer)
            if handler.command == "GET":
                line["answer"] = answer
            self.learn(number, body, answer)
        handler.send_response(response.status)
        handler.send_header("Content-Type", response.headers.get("Content-Type", "text/plain"))
        handler.send_header("Content-Length", str(len(answer.encode())))
        handler.end_headers()
        try:
            handler.wfile.write(answer.encode())
        except ConnectionError:
            # The client did not wait for this answer.
            line.pop("outcome")

    def learn(self, number, body, answer):
        """Names what a later request may repeat."""
        if any(name in body for name in REFERRED):
            for reference in REF.findall(answer)[:1]:
                self.names[reference] = f"{{{{answer|{number}}}}}"
        for token in TOKEN.finditer(answer):
            self.names[token.group(1) or token.group(2)] = "{{token}}"

    def generalise(self, body):
        """Replaces what differs between two daemons."""
        for known, name in sorted(self.names.items(), key=lambda pair: -len(pair[0])):
            body = body.replace(known, name)
        body = body.replace(self.password, "{{password}}")
        found = set(REF.findall(body)) | set(UUID.findall(body))
        if found:
            for one, name in self.identify(found).items():
                body = body.replace(one, name)
        return body

    def identify(self, found):
        """Returns a placeholder for each reference and UUID."""
        events = self.admin.event_from(self.session, ["*"], "", 0.0)["Value"]["events"]
        records = {event["ref"]: (event["class"], event["snapshot"]) for event in events}
        # Names of classes are lower case in events.
        methods = self.admin.system.listMethods()
        methods = methods if isinstance(methods, list) else methods["Value"]
        classes = {name.lower(): name for name in {method.split(".")[0] for method in methods}}
        names = {}
        for reference, (kind, record) in records.items():
            kind = classes.get(kind, kind)
            words = [kind]
            for field in IDENTITY.get(kind, []):
                value = record[field]
                if value in records:
                    value = records[value][1]["name_label"]
                words.append(f"{field}={value}")
            for what, one in [("ref", reference), ("uuid", record.get("uuid"))]:
                if one in found:
                    names[one] = "{{" + "|".join([what, *words]) + "}}"
        # A client may make UUIDs of its own.
        unknown = {one for one in found - set(names) if REF.match(one)}
        if unknown:
            self.fail(f"nothing is known of {sorted(unknown)}")
        if len(set(names.values())) < len(names):
            self.fail(f"two objects look the same: {sorted(names.values())}")
        return names

    def fail(self, why):
        """Makes the recording fail. The request goes on."""
        self.failure = self.failure or f"{why}: extend recorder.py"

    def write(self, path):
        """Writes the requests that were answered."""
        self.server.shutdown()
        if self.failure:
            raise SystemExit(self.failure)
        with open(path, "w", encoding="utf-8") as to:
            for line in self.lines:
                to.write(json.dumps(line, ensure_ascii=False) + "\n")


def outcome(handler, status, answer):
    """Returns `ok`, the code of an error, or the HTTP status."""
    if status != 200:
        return f"HTTP {status}"
    if handler.command != "POST":
        return "ok"
    if handler.path.startswith("/jsonrpc"):
        answer = json.loads(answer)
        error = answer.get("error")
        if not error:
            return "ok"
        return error["message"] if isinstance(error, dict) else error[0]
    (value,), _ = xmlrpc.client.loads(answer)
    return "ok" if value["Status"] == "Success" else value["ErrorDescription"][0]
