//! No process outlives the one that started it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests may"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

const CASE: [&str; 3] = ["--scenario=stall", "--policy=standard", "--seed=1"];

/// A process of a run that is prepared, and its address if it is the server.
fn prepared(role: &str, own: &[String]) -> (Child, ChildStdin, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sockets"))
        .arg(role)
        .args(CASE)
        .args(own)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
    stdout.read_line(&mut line).unwrap();
    let address = line.strip_prefix("ready").unwrap().trim().to_owned();
    (child, stdin, address)
}

/// When the parent process ends, the standard input of its processes is closed. This test hangs if one of them goes
/// on.
#[test]
fn a_process_ends_when_its_standard_input_is_closed() {
    for started in [false, true] {
        let (mut server, mut tell_server, address) = prepared("serve", &[]);
        let own = [
            format!("--address={address}"),
            "--part=0".into(),
            "--parts=1".into(),
        ];
        let (mut client, mut tell_client, _) = prepared("ask", &own);
        if started {
            // 1970: the run starts immediately, with five minutes of requests.
            writeln!(tell_server, "start 0").unwrap();
            writeln!(tell_client, "start 0").unwrap();
        }
        drop(tell_client);
        assert!(client.wait().unwrap().success());
        drop(tell_server);
        assert!(server.wait().unwrap().success());
    }
}
