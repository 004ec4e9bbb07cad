//! Results of the client and the middleware if a retry is held back until its limit: the last real outcome. On real
//! sockets.

use std::error::Error as StdError;
use std::sync::Arc;

use http::Request;
use relent::{Destination, StopReason, Summary};
use relent_http::body::NotKept;
use relent_reqwest::default_builder;
use relent_reqwest::{AttemptError, Body, Client, Error, RetryMiddleware};
use reqwest_middleware::ClientBuilder;

use crate::held_by::{ALL, HeldBy};
use crate::scripted::{Server, Step, cut, pattern, response};

/// A destination where the first attempt ends like this and no retry starts.
struct HeldBackCall {
    server: Server,
    there: Arc<Destination>,
    by: HeldBy,
}

impl HeldBackCall {
    async fn back(by: HeldBy, step: Step) -> Self {
        let there = Arc::new(by.destination().await);
        let from_elsewhere = there.clone();
        let server = Server::answering(move |_, _| {
            by.start_cooldown(&from_elsewhere);
            step.clone()
        });
        Self { server, there, by }
    }

    fn url(&self) -> String {
        self.server.url("/path")
    }

    fn http() -> reqwest::ClientBuilder {
        default_builder().no_proxy().tls_certs_only([])
    }

    fn client(&self) -> Client {
        let client = Client::from_builder(Self::http, self.by.policy()).unwrap();
        client.destination(self.there.clone())
    }

    fn check(&self, summary: &Summary) {
        let by = self.by;
        let (reason, attempts) = (summary.reason, summary.attempts);
        assert_eq!((reason, attempts), (Some(by.reason()), 1), "{by:?}");
        assert_eq!(self.server.count(), 1, "{by:?}");
    }
}

fn refused(body: &[u8]) -> Step {
    Step::Answer(response(503, &[("x-why", "full")], body))
}

/// A refused response without a length in its head.
fn refused_in_chunks(body: &[u8]) -> Step {
    let head = "HTTP/1.1 503 Scripted\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut bytes = head.as_bytes().to_vec();
    for chunk in body.chunks(100_000) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    Step::Answer(bytes)
}

#[tokio::test]
async fn the_client_returns_a_held_back_response_with_its_body() {
    for by in ALL {
        // With the circuit breaker each one takes a second.
        let bodies = match by {
            HeldBy::CircuitBreaker => vec![b"too much to do".to_vec()],
            _ => vec![Vec::new(), b"too much".to_vec(), pattern(1, 256 << 10)],
        };
        for body in bodies {
            for (step, named) in [(refused(&body), true), (refused_in_chunks(&body), false)] {
                let held = HeldBackCall::back(by, step).await;
                let response = held.client().get(held.url()).send().await.unwrap();
                held.check(response.summary());
                assert_eq!(response.status(), 503);
                assert_eq!(response.url().as_str(), held.url());
                assert_eq!(response.remote_addr(), Some(held.server.address));
                assert_eq!(response.headers().contains_key("x-why"), named);
                assert_eq!(response.content_length(), Some(body.len() as u64));
                assert_eq!(response.bytes().await.unwrap(), body);
            }
        }
    }
}

#[tokio::test]
async fn a_held_back_download_writes_the_refused_response_to_its_sink() {
    for by in ALL {
        let held = HeldBackCall::back(by, refused(b"too much to do")).await;
        let mut sink = Vec::new();
        let request = Request::get(held.url()).body(Body::empty()).unwrap();
        let (head, summary) = held.client().download(request, &mut sink).await.unwrap();
        held.check(&summary);
        assert_eq!(
            (head.status().as_u16(), &*sink),
            (503, &b"too much to do"[..])
        );

        let held = HeldBackCall::back(by, refused(b"too much to do")).await;
        let whole = held.client().get(held.url()).whole_body().send();
        let whole = whole.await.unwrap();
        held.check(whole.summary());
        assert_eq!(whole.status(), 503);
        assert_eq!(whole.text().await.unwrap(), "too much to do");
    }
}

#[tokio::test]
async fn the_client_returns_the_network_error_of_a_held_back_call() {
    for by in ALL {
        let held = HeldBackCall::back(by, Step::Close(Vec::new())).await;
        let sent = held.client().get(held.url()).send().await;
        let Err(Error::GaveUp(gave_up)) = sent else {
            panic!("{sent:?}");
        };
        held.check(gave_up.summary());
        assert!(matches!(gave_up.error(), Some(AttemptError::Transport(_))));

        let held = HeldBackCall::back(by, Step::Close(Vec::new())).await;
        let request = Request::get(held.url()).body(Body::empty()).unwrap();
        let gave_up = held.client().download(request, &mut Vec::new()).await;
        let gave_up = gave_up.unwrap_err();
        held.check(gave_up.summary());
        assert!(matches!(gave_up.error(), Some(AttemptError::Transport(_))));
    }
}

/// The first source that is this error.
fn not_kept<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e NotKept> {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        source = error.source();
    }
    None
}

/// The bytes that were read, then an error that the body is incomplete.
#[tokio::test]
async fn the_client_ends_a_partly_drained_body_with_an_error() {
    let long = pattern(2, 300_000);
    let stalls = Step::Stall(cut(503, &[], b"a body that is longer", 6));
    for (step, kept, why) in [
        // Nothing is read of a body that is known to be too long.
        (refused(&long), &b""[..], "longer than 256 KiB"),
        (
            refused_in_chunks(&long),
            &long[..256 << 10],
            "longer than 256 KiB",
        ),
        (stalls, b"a body", "took too long"),
    ] {
        let held = HeldBackCall::back(HeldBy::Cooldown, step).await;
        let mut response = held.client().get(held.url()).send().await.unwrap();
        held.check(response.summary());
        assert_eq!(response.status(), 503);
        let mut read = Vec::new();
        let error = loop {
            match response.chunk().await {
                Ok(Some(bytes)) => read.extend_from_slice(&bytes),
                Ok(None) => panic!("it ends as if it were whole"),
                Err(error) => break error,
            }
        };
        assert_eq!(read.len(), kept.len());
        assert_eq!(read, kept);
        let error = not_kept(&error).unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
    let held = HeldBackCall::back(HeldBy::Cooldown, refused(&long)).await;
    let response = held.client().get(held.url()).send().await.unwrap();
    let error = response.text().await.unwrap_err();
    assert!(matches!(error, Error::Body(..)));
    assert!(not_kept(&error).is_some());
}

#[tokio::test]
async fn the_middleware_returns_the_last_response_or_reqwest_error() {
    for by in ALL {
        let send = async |held: &HeldBackCall| {
            let retry = RetryMiddleware::new(by.policy()).destination(held.there.clone());
            let http = HeldBackCall::http().build().unwrap();
            let stack = ClientBuilder::new(http).with(retry).build();
            let request = reqwest::Request::new(http::Method::GET, held.url().parse().unwrap());
            let mut extensions = http::Extensions::new();
            let sent = stack.execute_with_extensions(request, &mut extensions);
            let sent = sent.await;
            held.check(extensions.get().unwrap());
            sent
        };
        let held = HeldBackCall::back(by, refused(b"too much to do")).await;
        let response = send(&held).await.unwrap();
        held.check(response.extensions().get().unwrap());
        assert_eq!(response.status(), 503);
        assert_eq!(response.url().as_str(), held.url());
        assert_eq!(response.text().await.unwrap(), "too much to do");

        let held = HeldBackCall::back(by, Step::Close(Vec::new())).await;
        let error = send(&held).await.unwrap_err();
        assert!(
            matches!(error, reqwest_middleware::Error::Reqwest(_)),
            "{error:?}"
        );
    }
}

/// A call without any attempt has no outcome.
#[tokio::test]
async fn a_call_without_an_attempt_has_no_outcome() {
    let held = HeldBackCall::back(HeldBy::Cooldown, refused(b"")).await;
    HeldBy::Cooldown.start_cooldown(&held.there);
    let sent = held.client().get(held.url()).send().await;
    let Err(Error::GaveUp(gave_up)) = sent else {
        panic!("{sent:?}");
    };
    assert_eq!(
        (gave_up.reason(), gave_up.attempts()),
        (StopReason::RetryLater, 0)
    );
    assert!(gave_up.error().is_none());
}
