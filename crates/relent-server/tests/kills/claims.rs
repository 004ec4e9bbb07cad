//! Tests that a process killed at any time repeats no effect, and loses no confirmed response.

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use relent::random::SessionRandom;
use relent_core::Random;
use relent_core::idempotency::{ClaimConfig, Fingerprint};
use relent_server::store::{Change, Claimed, Key, Sqlite, Store, StoredResponse};

const DIRECTORY: &str = "RELENT_SERVER_CRASH";
const KILLS: usize = 40;

/// The lease expires with the process, so a duplicate never waits.
const CONFIG: ClaimConfig = ClaimConfig {
    lease: Duration::ZERO,
    ..ClaimConfig::DEFAULT
};

fn key(number: u32) -> Key {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    Key(key)
}

fn answer(number: u32) -> StoredResponse {
    let body = Bytes::from(number.to_string());
    StoredResponse::from_parts(StatusCode::OK, HeaderMap::new(), Some(body), None)
}

/// Simulates a kill. A kill from outside rarely hits the moment between two writes.
fn die_at_random(random: &mut SessionRandom) {
    if random.next_u64().is_multiple_of(30) {
        std::process::abort();
    }
}

/// The killed process: it claims each key, charges, records the response, and reports it. It first repeats all keys
/// of its predecessors, as their clients would.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return; // The test below starts this as a process.
    };
    let directory = Path::new(&directory);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Sqlite::open(directory.join("keys.db")).unwrap();
        let append = OpenOptions::new().create(true).append(true).clone();
        let mut charges = append.open(directory.join("charges")).unwrap();
        let mut random = SessionRandom::new();
        let begun = fs::read_to_string(directory.join("begun")).unwrap_or_default();
        let first = begun.lines().count() as u32;
        let mut begun = append.open(directory.join("begun")).unwrap();
        for number in first.saturating_sub(20).. {
            if number >= first {
                writeln!(begun, "{number}").unwrap();
            }
            let owner = u128::from(random.next_u64());
            let key = key(number);
            let claim = store.claim(&key, owner, Fingerprint([0; 32]), &CONFIG);
            match claim.await.unwrap() {
                Claimed::Run { lease, .. } => {
                    die_at_random(&mut random);
                    writeln!(charges, "{number}").unwrap();
                    die_at_random(&mut random);
                    let change = Change::Complete(Arc::new(answer(number)));
                    store.write(&key, &lease, change, &CONFIG).await.unwrap();
                    die_at_random(&mut random);
                    println!("told {number}");
                }
                Claimed::Replay(found) => {
                    assert_eq!(found, answer(number));
                    println!("told {number}");
                }
                Claimed::Unknown => {}
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_killed_process_charges_once_and_keeps_confirmed_responses() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = SessionRandom::with_seed(1);
    let mut told = HashSet::new();
    for _ in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "claims::child", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stop_at = random.next_u64() % 40;
        // After this number of responses the child is killed, unless it has died before.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut note = |line: String| {
            let number = line
                .strip_prefix("told ")
                .map(|number| number.parse::<u32>().unwrap());
            told.extend(number);
            number.is_some()
        };
        let mut seen = 0;
        while seen < stop_at
            && let Some(line) = lines.next()
        {
            seen += u64::from(note(line.unwrap()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines {
            note(line.unwrap());
        }
    }
    let mut charges = HashMap::<u32, u32>::new();
    for line in fs::read_to_string(directory.path().join("charges"))
        .unwrap()
        .lines()
    {
        *charges.entry(line.parse().unwrap()).or_default() += 1;
    }
    assert!(
        charges.values().all(|&times| times == 1),
        "nobody is charged twice"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Sqlite::open(directory.path().join("keys.db")).unwrap();
        for &number in &told {
            let key = key(number);
            let claim = store.claim(&key, 1, Fingerprint([0; 32]), &CONFIG);
            assert_eq!(claim.await.unwrap(), Claimed::Replay(answer(number)));
        }
    });
    assert!(told.len() > KILLS, "{} answers", told.len());
}
