//! A message that kills each process that sends it, beside another message.

use relent_outbox::endpoint::Endpoint;
use relent_outbox::message::NewMessage;
use relent_outbox::store::{Filter, MessageState, Store};

use crate::support::Receiver;

const POISON: &str = "poison";
/// The path of the requests with the poisoned message.
pub(crate) const PATH: &str = "/poison";

/// Registers an endpoint for each of both messages, and enqueues them.
pub(crate) async fn enqueue(store: &impl Store, receiver: &Receiver, policy: &str) {
    for name in [POISON, "others"] {
        let endpoint = Endpoint::new(name, receiver.url(name))
            .policy(policy)
            .hold(false);
        store.put_endpoint(endpoint).await.unwrap();
        let message = NewMessage::new(name, "event", "{}");
        store.enqueue(vec![message]).await.unwrap();
    }
}

/// The number of requests with the poisoned message.
pub(crate) fn hits(receiver: &Receiver) -> usize {
    let hits = receiver.hits();
    hits.iter().filter(|hit| hit.path == PATH).count()
}

/// Asserts that the poisoned message is dead after this number of attempts, and the other is delivered by one.
pub(crate) async fn is_dead_after(attempts: u32, store: &impl Store, receiver: &Receiver) {
    assert_eq!(hits(receiver), usize::try_from(attempts).unwrap());
    assert_eq!(receiver.hits().len(), hits(receiver) + 1);
    for status in store.messages(Filter::default(), 10).await.unwrap() {
        let expected = match status.endpoint.as_str() {
            POISON => (MessageState::Dead, attempts),
            _ => (MessageState::Delivered, 1),
        };
        assert_eq!((status.state, status.attempts), expected, "{status:?}");
    }
}
