//! The hold of an endpoint by a local fault, such as an unavailable signing key.

use std::time::Duration;

use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::fault::{LocalFault, next_wait};
use crate::observe;

/// The local fault that holds the messages of an endpoint, if any.
#[derive(Debug, Default)]
pub(super) struct FaultHold {
    hold: Option<Hold>,
    /// A local fault holds some of the messages, which was reported.
    holds_some: bool,
}

#[derive(Debug)]
struct Hold {
    fault: LocalFault,
    /// The time of the next try.
    until: Instant,
    wait: Duration,
}

impl FaultHold {
    /// The fault that holds all messages.
    pub(super) fn fault(&self) -> Option<&LocalFault> {
        self.hold.as_ref().map(|hold| &hold.fault)
    }

    /// Until when no message may be sent; `None` if one may be sent as a test.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        let until = self.hold.as_ref().map(|hold| hold.until);
        until.filter(|until| now < *until)
    }

    /// Holds all messages, or extends the hold: each lasts longer than the one before. Attempts that ran at the same time
    /// extend it once.
    pub(super) fn begin(&mut self, now: Instant, endpoint: &Endpoint, fault: LocalFault) {
        let is_new = self.fault().is_none_or(|before| before.kind != fault.kind);
        observe::local_fault(&endpoint.tenant, &endpoint.name, &fault, is_new);
        let (until, wait) = match &self.hold {
            Some(hold) if now < hold.until => (hold.until, hold.wait),
            before => {
                let wait = next_wait(before.as_ref().map(|hold| hold.wait));
                (now + wait, wait)
            }
        };
        self.hold = Some(Hold { fault, until, wait });
    }

    /// Reports a fault that holds a single message; the others are sent.
    pub(super) fn hold_one(&mut self, endpoint: &Endpoint, fault: &LocalFault) {
        let is_new = !std::mem::replace(&mut self.holds_some, true);
        observe::local_fault(&endpoint.tenant, &endpoint.name, fault, is_new);
    }

    /// Ends the hold.
    pub(super) fn end(&mut self, endpoint: &Endpoint) {
        if self.hold.take().is_some() {
            observe::fault_fixed(&endpoint.tenant, &endpoint.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{FaultKind, LONGEST_WAIT};

    #[test]
    fn holds_grow_until_the_fault_is_fixed() {
        let (mut now, endpoint) = (Instant::now(), Endpoint::new("a", "https://a.example/"));
        let fault = || LocalFault {
            kind: FaultKind::Resolver,
            error: "for a test".to_owned(),
        };
        let mut hold = FaultHold::default();
        let mut before = Duration::ZERO;
        for _ in 0..9 {
            hold.begin(now, &endpoint, fault());
            let until = hold.until(now).unwrap();
            let wait = until - now;
            assert!(wait > before || wait == LONGEST_WAIT, "{wait:?}");
            hold.begin(now + wait / 2, &endpoint, fault());
            assert_eq!(hold.until(now), Some(until), "it ran at the same time");
            assert_eq!(hold.until(until), None, "a test may be sent");
            (now, before) = (until, wait);
        }
        hold.end(&endpoint);
        assert!(hold.fault().is_none());
        hold.begin(now, &endpoint, fault());
        assert!(hold.until(now).unwrap() - now < before);
    }
}
