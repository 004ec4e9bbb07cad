#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::time::Duration;

use tokio::sync::broadcast;

/// The most endpoints that a hint names. As text they fit into a notification of PostgreSQL, which is shorter than 8000
/// bytes.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
const MOST: usize = 256;
/// So many hints wait for a worker that is busy; more are one that names nothing.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
const WAITING: usize = 256;

/// What a hint tells: see [`Store::hints`](super::Store::hints).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Hinted {
    /// These endpoints have got messages that are due at once.
    Endpoints(Arc<[i64]>),
    /// Any endpoint may have something to do.
    Anything,
}

/// Tells when something may have been enqueued, and where: see [`Store::hints`](super::Store::hints).
#[derive(Debug)]
pub struct Hints(Option<broadcast::Receiver<Hinted>>);

impl Hints {
    /// Tells nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Tells what is sent there. Of what is lost, because more was sent than the channel holds, it tells
    /// [`Hinted::Anything`].
    #[must_use]
    pub const fn of(sent: broadcast::Receiver<Hinted>) -> Self {
        Self(Some(sent))
    }

    /// The next hint since the last one, or since these were made. It may never return. Nothing is missed if the future is
    /// dropped.
    pub async fn next(&mut self) -> Hinted {
        let told = match &mut self.0 {
            Some(sent) => sent.recv().await,
            None => pending().await,
        };
        match told {
            Ok(hinted) => hinted,
            Err(broadcast::error::RecvError::Lagged(_)) => Hinted::Anything,
            Err(broadcast::error::RecvError::Closed) => {
                // Nobody is left who could tell.
                self.0 = None;
                pending().await
            }
        }
    }

    /// The next one, if it is there already.
    pub(crate) fn try_next(&mut self) -> Option<Hinted> {
        match self.0.as_mut()?.try_recv() {
            Ok(hinted) => Some(hinted),
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(Hinted::Anything),
            Err(_) => None,
        }
    }
}

/// Where a store tells its workers.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) fn channel() -> broadcast::Sender<Hinted> {
    broadcast::Sender::new(WAITING)
}

/// Gathers what to tell of messages that are enqueued together.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(Default)]
pub(super) struct Got {
    endpoints: BTreeSet<i64>,
    is_more: bool,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Got {
    /// The endpoint has got a message, due after this delay.
    pub(super) fn add(&mut self, endpoint: i64, delay: Duration) {
        self.endpoints.insert(endpoint);
        // Whoever claims it now finds nothing, and has to look when it is due.
        self.is_more |= !delay.is_zero() || self.endpoints.len() > MOST;
        if self.is_more {
            self.endpoints.clear();
        }
    }

    /// `None` if nothing has come in.
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
    /// As the payload of a notification: numbers with commas between them, or nothing.
    pub(super) fn write(&self) -> String {
        match self {
            Self::Endpoints(endpoints) => {
                let endpoints: Vec<_> = endpoints.iter().map(i64::to_string).collect();
                endpoints.join(",")
            }
            Self::Anything => String::new(),
        }
    }

    /// What cannot be read, such as what another version has written, may tell of anything.
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
        let mut got = Got::default();
        for endpoint in endpoints {
            got.add(endpoint, Duration::ZERO);
        }
        got.hinted()
    }

    #[test]
    fn it_names_each_endpoint_once_unless_they_are_too_many() {
        assert_eq!(got([]), None);
        let three = Hinted::Endpoints([1, 5, 9].into());
        assert_eq!(got([5, 1, 9, 5]), Some(three));
        let most = i64::try_from(MOST).unwrap();
        assert!(matches!(got(0..most), Some(Hinted::Endpoints(named)) if named.len() == MOST));
        assert_eq!(got(0..most + 1), Some(Hinted::Anything));
        // Those that come after are too many, too.
        assert_eq!(got(0..3 * most), Some(Hinted::Anything));
    }

    #[test]
    fn of_what_is_due_later_it_names_nothing() {
        let mut got = Got::default();
        got.add(1, Duration::from_nanos(1));
        got.add(2, Duration::ZERO);
        assert_eq!(got.hinted(), Some(Hinted::Anything));
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_notification_says_the_same() {
        let longest = i64::MIN..i64::MIN + i64::try_from(MOST).unwrap();
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
    async fn hints_that_nobody_could_keep_tell_of_anything() {
        let sender = channel();
        let mut hints = Hints::of(sender.subscribe());
        let one = Hinted::Endpoints([1].into());
        for _ in 0..=WAITING {
            sender.send(one.clone()).unwrap();
        }
        assert_eq!(hints.next().await, Hinted::Anything);
        for _ in 0..WAITING {
            assert_eq!(hints.next().await, one);
        }
        assert_eq!(hints.try_next(), None);
    }
}
