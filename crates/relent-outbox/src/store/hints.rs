use std::future::pending;

use tokio::sync::watch;

/// Tells when something may have been enqueued: see [`Store::hints`](super::Store::hints).
#[derive(Clone, Debug)]
pub struct Hints(Option<watch::Receiver<()>>);

impl Hints {
    /// Tells nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Tells whenever something is sent there.
    #[must_use]
    pub const fn of(sent: watch::Receiver<()>) -> Self {
        Self(Some(sent))
    }

    /// Returns when there was a hint since the last one, or since these were made. It may never return. Nothing is missed
    /// if the future is dropped.
    pub async fn next(&mut self) {
        let told = match &mut self.0 {
            Some(sent) => sent.changed().await.is_ok(),
            None => false,
        };
        if !told {
            // Nobody is left who could tell.
            self.0 = None;
            pending::<()>().await;
        }
    }
}
