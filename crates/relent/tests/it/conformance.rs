//! The retry loops of this crate make the same decisions: each plays the same scripts, and the
//! results are compared.
//!
//! A loop is a [`RetryLoop`](retry_loop::RetryLoop). To add one (a layer, a client, a command), implement it and
//! play [`script::all`].
#![allow(unreachable_pub, reason = "a binary of its own")]

mod clock;
mod retry_loop;
mod script;

use retry_loop::{Blocked, Borrowed, CallRecord, Future, HandWritten, Hedged, RetryLoop};
use script::Script;

fn retry_loops() -> Vec<(&'static str, Box<dyn RetryLoop>)> {
    vec![
        ("a loop around a driver", Box::new(HandWritten)),
        ("the future", Box::new(Future)),
        ("the borrowing future", Box::new(Borrowed)),
        ("the blocking loop", Box::new(Blocked)),
        ("the hedged future", Box::new(Hedged)),
    ]
}

fn same(scripts: impl IntoIterator<Item = Script>) -> Vec<CallRecord> {
    let mut accounts = Vec::new();
    for script in scripts {
        let mut first: Option<CallRecord> = None;
        for (name, retry_loop) in retry_loops() {
            let account = retry_loop.play(&script);
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
fn all_retry_loops_make_the_same_attempts_and_end_the_same() {
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
        Some("circuit_breaker"),
    ] {
        let ended = |account: &&CallRecord| account.reason == reason;
        assert!(accounts.iter().any(|account| ended(&account)), "{reason:?}");
    }
    assert!(accounts.iter().any(|account| account.starts.len() > 4));
    assert!(accounts.iter().any(|account| account.starts.is_empty()));
}

#[test]
fn every_give_up_is_the_last_trace_entry() {
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
        for (name, retry_loop) in retry_loops() {
            for polls in 0..12 {
                if !retry_loop.drop_after(&script, polls) {
                    break;
                }
            }
            let _ = name;
        }
    }
}
