//! The retry loops of this crate make the same decisions: each plays the same scripts, and the
//! results are compared.
//!
//! A loop is a [`Face`](face::Face). To add one (a layer, a client, a command), implement it and
//! play [`script::all`].
#![allow(unreachable_pub, reason = "a binary of its own")]

mod clock;
mod face;
mod script;

use face::{Account, Blocked, Borrowed, Face, Future, Hedged, Written};
use script::Script;

fn faces() -> Vec<(&'static str, Box<dyn Face>)> {
    vec![
        ("a loop around a driver", Box::new(Written)),
        ("the future", Box::new(Future)),
        ("the borrowing future", Box::new(Borrowed)),
        ("the blocking loop", Box::new(Blocked)),
        ("the hedged future", Box::new(Hedged)),
    ]
}

fn same(scripts: impl IntoIterator<Item = Script>) -> Vec<Account> {
    let mut accounts = Vec::new();
    for script in scripts {
        let mut first: Option<Account> = None;
        for (name, face) in faces() {
            let account = face.play(&script);
            match &first {
                None => first = Some(account),
                Some(first) => assert_eq!(*first, account, "{name} plays {script:?}"),
            }
        }
        accounts.extend(first);
    }
    accounts
}

#[test]
fn all_faces_make_the_same_attempts_and_end_the_same() {
    let accounts = same(script::all(400));
    // Otherwise the scripts would test nothing.
    for reason in [
        None,
        Some("retries_exhausted"),
        Some("deadline"),
        Some("max_elapsed"),
        Some("permanent"),
        Some("retry_later"),
        Some("budget"),
        Some("cancelled"),
        Some("gate"),
    ] {
        let ended = |account: &&Account| account.reason == reason;
        assert!(accounts.iter().any(|account| ended(&account)), "{reason:?}");
    }
    assert!(accounts.iter().any(|account| account.starts.len() > 4));
    assert!(accounts.iter().any(|account| account.starts.is_empty()));
}

#[test]
fn every_give_up_is_where_the_trace_ends() {
    for account in same(script::all(400)) {
        if let (Some(reason), Some(last)) = (account.reason, account.trace.last()) {
            assert_eq!(last.stop, Some(reason), "{account:?}");
        }
    }
}

/// A future that is dropped at any await leaves nothing behind.
#[test]
fn a_future_that_is_dropped_at_any_await_leaves_nothing_behind() {
    for script in script::all(200) {
        for (name, face) in faces() {
            for polls in 0..12 {
                if !face.drop_after(&script, polls) {
                    break;
                }
            }
            let _ = name;
        }
    }
}
