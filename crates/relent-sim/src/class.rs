//! Properties of a request that depend on its class.

use crate::random_stream::Stream;
use crate::scenario::{Class, Clients};

/// The class number of the next request; 0 if there are no classes.
pub(crate) fn drawn(clients: &Clients, stream: &mut Stream) -> u8 {
    let Some((_, others)) = clients.classes.split_last() else {
        return 0;
    };
    let all: f64 = clients.classes.iter().map(|class| class.share).sum();
    let mut rest = stream.unit() * all;
    for (number, class) in (0..).zip(others) {
        if rest <= class.share {
            return number;
        }
        rest -= class.share;
    }
    // There are at most 250.
    others.len() as u8
}

fn of(clients: &Clients, class: u8) -> Option<&Class> {
    clients.classes.get(usize::from(class))
}

/// The time after which the caller of a request goes away, in nanoseconds.
pub(crate) fn deadline(clients: &Clients, class: u8) -> u64 {
    let own = of(clients, class).and_then(|class| class.deadline);
    own.unwrap_or(clients.deadline)
}

/// The time given to one attempt.
pub(crate) fn attempt_timeout(clients: &Clients, class: u8) -> u64 {
    let own = of(clients, class).and_then(|class| class.attempt_timeout);
    own.unwrap_or(clients.attempt_timeout)
}
