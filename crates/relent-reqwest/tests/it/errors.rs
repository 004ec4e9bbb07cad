//! Texts of the errors of this crate and their sources, and the causes found within them.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use relent::error::DynError;
use relent::{GaveUp, Policy, VirtualClock, blocking};
use relent_core::{Cause, FailureKind, Network};
use relent_http::ServiceError;
use relent_http::body::NotReplayable;
use relent_reqwest::{AttemptError, Client, Error, network};

/// The text of the innermost error.
const ROOT: &str = "connection refused";

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, ROOT)
}

/// A give-up with this last error.
fn gave_up<L>(last: impl Fn() -> L) -> GaveUp<L> {
    let clock = VirtualClock::new();
    let session = blocking::retry(Policy::STANDARD, || Err::<(), _>(last()));
    session.clock(clock).run().unwrap_err()
}

/// One request to a port without a listener.
async fn sent() -> Error {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let policy = Policy::STANDARD.clone().into_builder().max_retries(0);
    let client = Client::new(policy.build().unwrap()).unwrap();
    client
        .get(format!("http://{address}/"))
        .send()
        .await
        .unwrap_err()
}

/// No text of the chain is a part of an earlier one, and the cause occurs once.
#[track_caller]
fn prints_each_cause_once(error: &dyn StdError, cause: &str) {
    assert!(error.to_string().contains(cause), "{error}");
    let mut lines = vec![error.to_string()];
    let mut source = error.source();
    while let Some(error) = source {
        let line = error.to_string();
        assert!(
            lines.iter().all(|above| !above.contains(&line)),
            "{line:?} is in {lines:?}"
        );
        lines.push(line);
        source = error.source();
    }
    assert_eq!(lines.join("\n").matches(cause).count(), 1, "{lines:?}");
}

#[tokio::test]
async fn a_chain_prints_each_cause_once() {
    let error = sent().await;
    prints_each_cause_once(&error, "refused");
    let Error::GaveUp(error) = error else {
        unreachable!("{error}");
    };
    prints_each_cause_once(&error, "refused");
    prints_each_cause_once(error.error().unwrap(), "refused");

    let unsent = Client::new(Policy::STANDARD).unwrap();
    let unsent = unsent.get("no URL").send().await.unwrap_err();
    assert!(matches!(unsent, Error::Request(_)), "{unsent}");
    prints_each_cause_once(&unsent, "relative URL without a base");

    for error in [AttemptError::Body(refused()), AttemptError::Sink(refused())] {
        prints_each_cause_once(&error, ROOT);
    }
    let limit = AttemptError::Timeout(Duration::from_secs(5));
    prints_each_cause_once(&limit, "no end after 5s");

    prints_each_cause_once(&ServiceError::Service(refused().into()), ROOT);
    prints_each_cause_once(&gave_up(|| ServiceError::Service(refused().into())), ROOT);
    prints_each_cause_once(&ServiceError::Body(NotReplayable), "cannot be sent again");
}

#[tokio::test]
async fn classify_error_finds_the_cause_within_a_wrapping_error() {
    let errors: [Box<dyn StdError>; 7] = [
        Box::new(ServiceError::Service(refused().into())),
        Box::new(gave_up(|| ServiceError::Service(refused().into()))),
        Box::new(AttemptError::Sink(refused())),
        Box::new(gave_up(refused)),
        Box::new(gave_up(refused).into_dyn()),
        Box::new(DynError::from(Box::from(refused()))),
        Box::new(sent().await),
    ];
    for error in errors {
        let failure = network::classify_error(&*error);
        assert_eq!(failure.kind, FailureKind::NotProcessed, "{error:?}");
        assert_eq!(failure.cause, Cause::Network(Network::Connect), "{error:?}");
    }
}
