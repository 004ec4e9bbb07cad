//! A running `relent deliver serve`, a receiver of messages, and requests to both.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{HANG_TIMEOUT, Ran, finish, relent};

/// Waits until `found` returns a value.
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < HANG_TIMEOUT, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut fields = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        fields.next().map(|(_, value)| value)
    }
}

/// A receiver that responds to `/ok` with 200, `/echo` with 200 and the header of the request, `/bad` with 500, `/gone`
/// with 410, `/slow` after half a second, and `/later` with a status that a test sets.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    later: Arc<Mutex<u16>>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            later: Arc::new(Mutex::new(503)),
        };
        let (seen, later) = (receiver.seen.clone(), receiver.later.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, later) = (seen.clone(), later.clone());
                thread::spawn(move || {
                    let Some(request) = read(&stream) else { return };
                    let path = request.path.clone();
                    let head = request.head.clone();
                    seen.lock().unwrap().push(request);
                    let status = match path.as_str() {
                        "/bad" => 500,
                        "/gone" => 410,
                        "/later" => *later.lock().unwrap(),
                        "/slow" => {
                            thread::sleep(Duration::from_millis(500));
                            200
                        }
                        _ => 200,
                    };
                    let body = match (status, &path[..]) {
                        (200, "/echo") => &head,
                        (200, _) => "{}",
                        _ => "no <b>such</b> \u{1b}[31morder",
                    };
                    let length = body.len();
                    let answer = format!(
                        "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nset-cookie: a=cookie-4711\r\n\
                         x-shop: eu\r\nconnection: close\r\n\r\n{body}"
                    );
                    let _ = (&stream).write_all(answer.as_bytes());
                });
            }
        });
        receiver
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sets the status of `/later`.
    pub(crate) fn answer(&self, status: u16) {
        *self.later.lock().unwrap() = status;
    }

    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let mut request = Request {
        path: head.split(' ').nth(1)?.to_owned(),
        head,
        body: String::new(),
    };
    let length = request.header("content-length")?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).ok()?;
    Some(request)
}

/// A running server.
pub(crate) struct Server {
    process: Option<Child>,
    said: Arc<Mutex<String>>,
    pub(crate) address: String,
    pub(crate) token: String,
}

/// A server, a receiver, and the folder of the server.
pub(crate) struct Setup {
    pub(crate) server: Server,
    pub(crate) receiver: Receiver,
    folder: TempDir,
}

impl Setup {
    /// Starts a server with a content token.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = ["--lease", "2s", "--content-token-file", "content.token"];
        Self {
            server: Server::start_with(folder.path(), &[&INSIDE[..], &options].concat()),
            receiver: Receiver::start(),
            folder,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `relent deliver ARGS`, which must succeed.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let ran = self.server.deliver(self.folder(), args);
        assert_eq!(ran.status, 0, "{args:?}: {ran:?}");
        ran
    }

    pub(crate) fn content_token(&self) -> String {
        let token = fs::read_to_string(self.folder().join("content.token")).unwrap();
        token.trim().to_owned()
    }
}

/// The content type of a form.
pub(crate) const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";

/// The options that allow receivers on this machine.
pub(crate) const INSIDE: [&str; 3] = ["--allow-network", "127.0.0.0/8", "--allow-http"];

impl Server {
    /// Starts a server in this folder, which may call receivers on this machine.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[&INSIDE[..], &["--lease", "2s"]].concat())
    }

    pub(crate) fn start_with(folder: &Path, args: &[&str]) -> Self {
        let mut process = relent(&["deliver", "serve", "--listen", "127.0.0.1:0"])
            .args(args)
            .current_dir(folder)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stderr.take().unwrap());
        let mut all = String::new();
        let address = loop {
            let mut line = String::new();
            assert!(
                said.read_line(&mut line).unwrap() > 0,
                "it does not start: {all}"
            );
            if let Some((_, rest)) = line.split_once("listening on http://") {
                break rest.split(',').next().unwrap().to_owned();
            }
            all.push_str(&line);
        };
        // Collects further messages.
        let says = Arc::new(Mutex::new(all));
        let kept = Arc::clone(&says);
        thread::spawn(move || {
            let mut line = Vec::new();
            while said.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                kept.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        let token = fs::read_to_string(folder.join("relent-deliver.token")).unwrap();
        Self {
            process: Some(process),
            said: says,
            address,
            token: token.trim().to_owned(),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.process.as_ref().unwrap().id() as i32)
    }

    /// The output on standard error so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Sends a signal and waits for the end of the server.
    pub(crate) fn stop(mut self, signal: Signal) -> Option<i32> {
        kill(self.pid(), signal).unwrap();
        let mut process = self.process.take().unwrap();
        until("the server ends", || process.try_wait().unwrap()).code()
    }

    /// Sends a request with the token; returns the status and the JSON of the response.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let token = format!("authorization: Bearer {}\r\n", self.token);
        let (status, _, body) = self.raw(method, path, &token, body);
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    /// Sends a request with these header fields; returns the status, the header and the body.
    pub(crate) fn raw(
        &self,
        method: &str,
        path: &str,
        fields: &str,
        body: &str,
    ) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: relent\r\nconnection: close\r\ncontent-length: {length}\r\n{fields}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        // The server may respond and close before it has read everything.
        let _ = stream.write_all(body.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    /// Runs `relent deliver ARGS` for this server in this folder.
    pub(crate) fn deliver(&self, folder: &Path, args: &[&str]) -> Ran {
        let server = format!("http://{}", self.address);
        let child = relent(&[&["deliver"], args].concat())
            .env("RELENT_DELIVER_SERVER", server)
            .current_dir(folder)
            .stdin(Stdio::null())
            .spawn();
        finish(child.unwrap())
    }

    /// Registers or changes an endpoint; returns the response.
    pub(crate) fn register(&self, name: &str, spec: &Value) -> Value {
        let path = format!("/v1/endpoints/{name}");
        let (status, registered) = self.ask("PUT", &path, &spec.to_string());
        assert!(status == 200 || status == 201, "{registered}");
        registered
    }

    /// Enqueues a message; returns its identifier.
    pub(crate) fn send(&self, message: &Value) -> String {
        let (status, sent) = self.ask("POST", "/v1/messages", &message.to_string());
        assert_eq!(status, 202, "{sent}");
        sent["id"].as_str().unwrap().to_owned()
    }

    /// Signs in to the page with this token; returns the header fields for requests of the session.
    pub(crate) fn sign_in(&self, token: &str) -> String {
        let (_, head, _) = self.raw("POST", "/login", FORM, &format!("token={token}"));
        let cookie = head
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        let cookie = cookie.unwrap_or_else(|| panic!("{head}"));
        format!("{FORM}cookie: {}\r\n", cookie.split(';').next().unwrap())
    }

    pub(crate) fn page(&self, session: &str, path: &str) -> (u16, String) {
        let (status, _, page) = self.raw("GET", path, session, "");
        (status, page)
    }

    /// The token in the forms of this page.
    pub(crate) fn form_token(&self, session: &str, path: &str) -> String {
        let (_, page) = self.page(session, path);
        let (_, token) = page
            .split_once("name=\"form_token\" value=\"")
            .expect(&page);
        token.split('"').next().unwrap().to_owned()
    }

    /// Sends a form; returns the status and the Location.
    pub(crate) fn fill(&self, session: &str, path: &str, form: &str) -> (u16, String) {
        let (status, head, page) = self.raw("POST", path, session, form);
        let to = head
            .lines()
            .find_map(|line| line.strip_prefix("location: "));
        (status, to.map_or(page, str::to_owned))
    }

    /// Waits until the message has this state.
    pub(crate) fn message_is(&self, id: &str, state: &str) -> Value {
        until(&format!("{id} is {state}"), || {
            let (_, shown) = self.ask("GET", &format!("/v1/messages/{id}"), "");
            (shown["message"]["state"] == state).then_some(shown)
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
