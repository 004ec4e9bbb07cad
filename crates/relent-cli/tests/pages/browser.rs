//! A headless Chromium for tests, controlled over its debugging pipe.
#![allow(clippy::print_stderr, reason = "tests may")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::HANG_TIMEOUT;

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A browser with one tab.
pub(crate) struct Browser {
    process: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: String,
    sent: u64,
    /// The events of the browser, in order.
    told: Vec<Value>,
    _profile: TempDir,
}

/// Opens the browser of this machine; `None` without one, which is an error in a CI.
pub(crate) fn open() -> Option<Browser> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = NAMES.iter().find_map(|name| {
        std::env::split_paths(&paths)
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())
    });
    let Some(program) = found else {
        let ci = std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1");
        assert!(!ci, "no browser: install chromium");
        eprintln!("skipped: no browser; install chromium to run this test");
        return None;
    };
    Some(Browser::start(&program))
}

impl Browser {
    fn start(program: &Path) -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The pipe is on the descriptors 3 and 4, which a shell sets up without unsafe code.
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 >/dev/null 2>&1", "sh"])
            .arg(program)
            .args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox"])
            .args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = process.stdin.take().unwrap();
        let output = process.stdout.take().unwrap();
        let (tell, from) = mpsc::channel();
        thread::spawn(move || {
            // Every message ends with a zero byte.
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                if tell
                    .send(serde_json::from_slice(&message).unwrap())
                    .is_err()
                {
                    return;
                }
            }
        });
        let mut browser = Self {
            process,
            to,
            from,
            session: String::new(),
            sent: 0,
            told: Vec::new(),
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.ask("Target.attachToTarget", &target);
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    fn hear(&mut self) -> Value {
        let heard = self.from.recv_timeout(HANG_TIMEOUT);
        heard.expect("the browser answers")
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to
            .write_all(format!("{message}\0").as_bytes())
            .unwrap();
        loop {
            let heard = self.hear();
            if heard["id"] == self.sent {
                assert!(heard["error"].is_null(), "{method}: {heard}");
                return heard["result"].clone();
            }
            self.told.push(heard);
        }
    }

    /// Opens a page at this width, in the light or the dark theme, and waits until it is loaded.
    pub(crate) fn load(&mut self, url: &str, width: u32, dark: bool) {
        let scheme = if dark { "dark" } else { "light" };
        let media = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.ask("Emulation.setEmulatedMedia", &json!({ "features": media }));
        let size = json!({
            "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.ask("Emulation.setDeviceMetricsOverride", &size);
        self.told.clear();
        self.ask("Page.navigate", &json!({ "url": url }));
        self.loaded();
    }

    /// Evaluates an expression that leads to another page, such as sending a form, and waits until that is loaded.
    pub(crate) fn go(&mut self, expression: &str) {
        self.told.clear();
        // The page may be gone before it can respond.
        let asked = json!({ "expression": format!("setTimeout(() => {{ {expression} }}, 0); 0") });
        self.ask("Runtime.evaluate", &asked);
        self.loaded();
    }

    /// A picture of the whole page, as PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let asked = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.ask("Page.captureScreenshot", &asked);
        let coded = picture["data"].as_str().unwrap();
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, coded).unwrap()
    }

    fn loaded(&mut self) {
        while !self
            .told
            .iter()
            .any(|told| told["method"] == "Page.loadEventFired")
        {
            let heard = self.hear();
            self.told.push(heard);
        }
    }

    /// The value of a JavaScript expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        let answer = self.ask("Runtime.evaluate", &asked);
        assert!(answer["exceptionDetails"].is_null(), "{answer}");
        answer["result"]["value"].clone()
    }

    /// Presses and releases a key.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let code = if key == "Tab" { 9 } else { 13 };
            let event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            self.ask("Input.dispatchKeyEvent", &event);
        }
    }

    /// The complaints of the page since it was loaded: messages of the console, errors, exceptions, and
    /// requests that the browser refused.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let bad = [
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
            "Network.loadingFailed",
        ];
        let told = self.told.iter();
        told.filter(|told| bad.iter().any(|method| told["method"] == **method))
            .collect()
    }

    /// The URLs that the page has requested.
    pub(crate) fn requests(&self) -> Vec<&str> {
        let told = self.told.iter();
        told.filter(|told| told["method"] == "Network.requestWillBeSent")
            .filter_map(|told| told["params"]["request"]["url"].as_str())
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
