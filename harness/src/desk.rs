//! The service of the scenario for attempts over HTTP.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use relent::Hint;
use relent::failure::Audience;
use relent_http::{CallerContext, Mark, set_hint};
use relent_sim::{ArrivingAttempt, Scenario, ServiceAnswer, Serving, Wait, WaitFormat};
use tokio::sync::{Notify, oneshot};

use crate::clock::Start;
use crate::wire::AttemptRecord;

/// An attempt that has reached the service: in the extensions of its request, behind layers.
#[derive(Clone, Copy)]
pub(crate) struct Noted(ArrivingAttempt);

/// The state that all connections share.
pub(crate) struct HttpService {
    pub(crate) start: Start,
    status: StatusCode,
    format: WaitFormat,
    state: Mutex<State>,
    /// Notified when the next event may be earlier than before.
    sooner: Notify,
}

pub(crate) struct State {
    pub(crate) serving: Serving,
    /// The receivers of the responses, by attempt.
    waiting: HashMap<u32, oneshot::Sender<ServiceAnswer>>,
    /// The attempts that arrived; the name of each is its index.
    pub(crate) attempts: Vec<AttemptRecord>,
}

impl HttpService {
    pub(crate) fn new(scenario: &Scenario, seed: u64, start: Start) -> Self {
        let limiter = scenario.service.limiter;
        Self {
            start,
            status: StatusCode::from_u16(scenario.service.status)
                .unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
            format: limiter.map_or(WaitFormat::default(), |limiter| limiter.format),
            state: Mutex::new(State {
                serving: Serving::new(scenario, seed),
                waiting: HashMap::new(),
                attempts: Vec::new(),
            }),
            sooner: Notify::new(),
        }
    }

    /// Sends responses when they are due.
    pub(crate) async fn work(&self) {
        loop {
            let next = {
                let mut state = self.state();
                state.serving.advance(self.start.now());
                state.answer();
                state.serving.next()
            };
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(self.start.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an attempt that reaches the service, with any outcome.
    pub(crate) fn note<B>(&self, request: &Request<B>) -> Noted {
        // The path is the name of the request: the same for all of its attempts.
        let key = request.uri().path().trim_start_matches('/').parse().ok();
        let number = CallerContext::from_headers(request.headers()).attempt;
        let mut state = self.state();
        let id = state.attempts.len() as u32;
        state.attempts.push(AttemptRecord {
            at: self.start.now(),
            // A request without a number does not belong to the run.
            request: key.unwrap_or(u64::MAX),
            attempt: number,
            executed: false,
        });
        Noted(ArrivingAttempt { id, number, key })
    }

    /// The response of the scenario's service.
    pub(crate) async fn answer(&self, noted: Noted) -> Response<Empty<Bytes>> {
        let failed = ServiceAnswer::Failure {
            do_not_retry: false,
            wait: None,
        };
        let answer = match self.arrive(noted) {
            Ok(answer) => answer,
            Err(later) => later.await.unwrap_or(failed),
        };
        self.response(answer)
    }

    /// An attempt arrives: returns its response, or the channel for it.
    fn arrive(
        &self,
        Noted(attempt): Noted,
    ) -> Result<ServiceAnswer, oneshot::Receiver<ServiceAnswer>> {
        let now = self.start.now();
        let mut state = self.state();
        let before = state.serving.next();
        let answer = state.serving.arrive(now, attempt);
        state.answer();
        if before != state.serving.next() {
            self.sooner.notify_one();
        }
        match answer {
            Some(answer) => Ok(answer),
            None => {
                let (tell, told) = oneshot::channel();
                state.waiting.insert(attempt.id, tell);
                Err(told)
            }
        }
    }

    fn response(&self, answer: ServiceAnswer) -> Response<Empty<Bytes>> {
        let mut response = Response::new(Empty::new());
        match answer {
            ServiceAnswer::Success => {}
            ServiceAnswer::Failure { do_not_retry, wait } => {
                *response.status_mut() = self.status;
                if do_not_retry {
                    Mark::Overloaded.set(response.headers_mut());
                }
                if let Some(wait) = wait {
                    set_hint(response.headers_mut(), &self.hint(wait));
                }
            }
            ServiceAnswer::Throttled(wait) => {
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                if let Some(wait) = wait {
                    set_hint(response.headers_mut(), &self.hint(wait));
                }
            }
        }
        response
    }

    /// The Retry-After of the limiter.
    fn hint(&self, wait: Wait) -> Hint {
        let audience = match (wait.ticket, self.format) {
            (false, _) => Audience::Shared,
            (true, WaitFormat::Milliseconds) => Audience::TicketMillis,
            (true, _) => Audience::TicketSeconds,
        };
        Hint::after(Duration::from_nanos(wait.nanos)).for_audience(audience)
    }
}

impl State {
    /// Sends the available responses. Clients that have gone get none.
    pub(crate) fn answer(&mut self) {
        for (id, answer) in self.serving.answers() {
            if let Some(arrival) = self.attempts.get_mut(id as usize) {
                arrival.executed = answer == ServiceAnswer::Success;
            }
            if let Some(tell) = self.waiting.remove(&id) {
                let _ = tell.send(answer);
            }
        }
    }
}
