#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::time::Duration;

use tokio::sync::broadcast;

/// The largest number of endpoints that a hint names. As text they fit into a PostgreSQL notification, which is limited
/// to 8,000 bytes.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
const MAX_NAMED_ENDPOINTS: usize = 256;
/// The number of hints that wait for a busy worker; more are replaced by one hint that names none.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
const MAX_WAITING_HINTS: usize = 256;

/// A notification of enqueued messages: see [`Store::hints`](super::Store::hints).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Hinted {
    /// These endpoints have got messages that are due immediately.
    Endpoints(Arc<[i64]>),
    /// Any endpoint may have got messages.
    Anything,
}

/// Receives notifications of enqueued messages: see [`Store::hints`](super::Store::hints).
#[derive(Debug)]
pub struct Hints(Option<broadcast::Receiver<Hinted>>);

impl Hints {
    /// Creates a receiver without notifications.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Receives from this channel. If notifications are lost because the channel was full, it returns
    /// [`Hinted::Anything`].
    #[must_use]
    pub const fn of(sent: broadcast::Receiver<Hinted>) -> Self {
        Self(Some(sent))
    }

    /// Returns the next hint after the last one, or after creation. It may never return. Dropping the future loses no
    /// hint.
    pub async fn next(&mut self) -> Hinted {
        let received = match &mut self.0 {
            Some(sent) => sent.recv().await,
            None => pending().await,
        };
        match received {
            Ok(hinted) => hinted,
            Err(broadcast::error::RecvError::Lagged(_)) => Hinted::Anything,
            Err(broadcast::error::RecvError::Closed) => {
                // All senders are gone.
                self.0 = None;
                pending().await
            }
        }
    }

    /// Returns the next hint, if it has already arrived.
    pub(crate) fn try_next(&mut self) -> Option<Hinted> {
        match self.0.as_mut()?.try_recv() {
            Ok(hinted) => Some(hinted),
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(Hinted::Anything),
            Err(_) => None,
        }
    }
}

/// Creates the channel by which a store notifies its workers.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) fn channel() -> broadcast::Sender<Hinted> {
    broadcast::Sender::new(MAX_WAITING_HINTS)
}

/// Collects the hint for messages that are enqueued together.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(Default)]
pub(super) struct HintBuilder {
    endpoints: BTreeSet<i64>,
    is_more: bool,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl HintBuilder {
    /// Adds a message for this endpoint, due after this delay.
    pub(super) fn add(&mut self, endpoint: i64, delay: Duration) {
        self.endpoints.insert(endpoint);
        // A claim now would find nothing, and the worker must search to learn the due time.
        self.is_more |= !delay.is_zero() || self.endpoints.len() > MAX_NAMED_ENDPOINTS;
        if self.is_more {
            self.endpoints.clear();
        }
    }

    /// The hint; `None` if no message was added.
    pub(super) fn hinted(self) -> Option<Hinted> {
        match (self.is_more, self.endpoints.is_empty()) {
            (true, _) => Some(Hinted::Anything),
            (false, true) => None,
            (false, false) => Some(Hinted::Endpoints(self.endpoints.into_iter().collect())),
        }
    }
}

#[cfg(feature = "postgres")]
impl Hinted {
    /// Serializes it as the payload of a notification: numbers separated by commas, or nothing.
    pub(super) fn write(&self) -> String {
        match self {
            Self::Endpoints(endpoints) => {
                let endpoints: Vec<_> = endpoints.iter().map(i64::to_string).collect();
                endpoints.join(",")
            }
            Self::Anything => String::new(),
        }
    }

    /// Parses a payload. An unreadable one, such as one of another version, gives `Anything`.
    pub(super) fn read(payload: &str) -> Self {
        let endpoints: Result<_, _> = payload.split(',').map(str::parse).collect();
        endpoints.map_or(Self::Anything, Self::Endpoints)
    }
}

#[cfg(all(test, any(feature = "postgres", feature = "sqlite")))]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use super::*;

    fn got(endpoints: impl IntoIterator<Item = i64>) -> Option<Hinted> {
        let mut got = HintBuilder::default();
        for endpoint in endpoints {
            got.add(endpoint, Duration::ZERO);
        }
        got.hinted()
    }

    #[test]
    fn a_hint_names_each_endpoint_once_up_to_a_limit() {
        assert_eq!(got([]), None);
        let three = Hinted::Endpoints([1, 5, 9].into());
        assert_eq!(got([5, 1, 9, 5]), Some(three));
        let most = i64::try_from(MAX_NAMED_ENDPOINTS).unwrap();
        assert!(
            matches!(got(0..most), Some(Hinted::Endpoints(named)) if named.len() == MAX_NAMED_ENDPOINTS)
        );
        assert_eq!(got(0..most + 1), Some(Hinted::Anything));
        // Adding more endpoints changes nothing.
        assert_eq!(got(0..3 * most), Some(Hinted::Anything));
    }

    #[test]
    fn a_hint_names_no_endpoint_if_a_message_is_delayed() {
        let mut got = HintBuilder::default();
        got.add(1, Duration::from_nanos(1));
        got.add(2, Duration::ZERO);
        assert_eq!(got.hinted(), Some(Hinted::Anything));
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_hint_round_trips_through_a_notification() {
        let longest = i64::MIN..i64::MIN + i64::try_from(MAX_NAMED_ENDPOINTS).unwrap();
        for hinted in [
            got([1, 5, 9]),
            got([7]),
            got(longest),
            Some(Hinted::Anything),
        ] {
            let hinted = hinted.unwrap();
            let payload = hinted.write();
            assert!(payload.len() < 8000, "{}", payload.len());
            assert_eq!(Hinted::read(&payload), hinted);
        }
        for other in ["", ",", "1,", "1,,2", "1, 2", "v2:1", "9223372036854775808"] {
            assert_eq!(Hinted::read(other), Hinted::Anything, "{other:?}");
        }
    }

    #[tokio::test]
    async fn lost_hints_become_one_hint_without_names() {
        let sender = channel();
        let mut hints = Hints::of(sender.subscribe());
        let one = Hinted::Endpoints([1].into());
        for _ in 0..=MAX_WAITING_HINTS {
            sender.send(one.clone()).unwrap();
        }
        assert_eq!(hints.next().await, Hinted::Anything);
        for _ in 0..MAX_WAITING_HINTS {
            assert_eq!(hints.next().await, one);
        }
        assert_eq!(hints.try_next(), None);
    }
}
