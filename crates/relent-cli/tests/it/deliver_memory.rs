//! Tests of the memory of `relent deliver serve`, as the system measures it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::store::{Sqlite, Store};

use crate::deliver_support::{INSIDE, Server, until};

const MESSAGES: usize = 400;
const PAYLOAD: usize = 1 << 20;
/// The memory limit for any behaviour of the endpoints: 256 MiB.
const MOST_KIB: u64 = 256 << 10;

/// Receivers that do not respond until they are released: every other one reads its request, the others do not.
struct Hanging {
    address: SocketAddr,
    connected: Arc<AtomicUsize>,
    answers: Arc<AtomicBool>,
}

impl Hanging {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hanging = Self {
            address: listener.local_addr().unwrap(),
            connected: Arc::default(),
            answers: Arc::default(),
        };
        let (connected, answers) = (hanging.connected.clone(), hanging.answers.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let reads = connected.fetch_add(1, Ordering::Relaxed) % 2 == 0;
                let answers = Arc::clone(&answers);
                thread::spawn(move || hang(&stream, reads, &answers));
            }
        });
        hanging
    }
}

fn hang(mut stream: &TcpStream, reads: bool, answers: &AtomicBool) {
    let wait = || {
        while !answers.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
    };
    if !reads {
        wait();
    }
    let (mut left, mut bytes) = (PAYLOAD, vec![0; 64 << 10]);
    while left > 0 {
        match stream.read(&mut bytes) {
            Ok(read @ 1..) => left = left.saturating_sub(read),
            _ => return,
        }
    }
    wait();
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    // Reads the rest of the head, up to the end.
    while let Ok(1..) = stream.read(&mut bytes) {}
}

/// A value of `/proc/PID/status` in KiB.
fn memory(server: &Server, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse().unwrap()
}

#[test]
fn large_messages_to_hanging_endpoints_use_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let hanging = Hanging::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Sqlite::open(folder.path().join("relent-deliver.db")).unwrap();
        for number in 0..MESSAGES {
            let (name, url) = (number.to_string(), format!("http://{}/", hanging.address));
            store.put_endpoint(Endpoint::new(&name, url)).await.unwrap();
            let message = NewMessage::new(&name, "event", vec![b'x'; PAYLOAD]);
            store.enqueue(vec![message]).await.unwrap();
        }
    });
    let server = Server::start_with(folder.path(), &INSIDE);
    let idle = memory(&server, "VmRSS");
    // As many as fit in the memory limit: a payload counts until it is written.
    until("attempts hang", || {
        (hanging.connected.load(Ordering::Relaxed) >= 64).then_some(())
    });
    // More attempts start as payloads that were read free their memory.
    thread::sleep(Duration::from_secs(3));
    hanging.answers.store(true, Ordering::Relaxed);
    until("all are delivered", || {
        let (_, summary) = server.ask("GET", "/v1/summary", "");
        (summary["pending"] == 0 && summary["running"] == 0).then_some(())
    });
    let peak = memory(&server, "VmHWM");
    assert!(peak <= MOST_KIB, "{peak} KiB at most");
    let most = idle + (96 << 10);
    until("memory is given back", || {
        (memory(&server, "VmRSS") <= most).then_some(())
    });
}
