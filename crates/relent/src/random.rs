//! The random stream of a session.

pub use relent_core::{FixedRandom, Random};

/// A small random generator, one per session. It is seeded at its first use, so that an operation
/// that succeeds immediately has no cost for it.
///
/// ```
/// use relent::random::{Random, SessionRandom};
///
/// let mut one = SessionRandom::with_seed(7);
/// let mut two = SessionRandom::with_seed(7);
/// assert_eq!(one.next_u64(), two.next_u64());
/// ```
#[derive(Clone, Debug, Default)]
pub struct SessionRandom {
    /// The state of the generator; 0 until it is seeded.
    state: u64,
}

impl SessionRandom {
    /// Creates an unseeded generator. `fastrand` seeds it at the first use: from the time in
    /// nanoseconds and the thread, and in a browser, with the feature `js`, from the browser's
    /// randomness. Each session has its own stream.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: 0 }
    }

    /// Creates the stream of this seed, for tests and repeatable runs.
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        // One generator step makes neighbouring seeds independent, and the state is never 0, which
        // means "not seeded".
        let state = fastrand::Rng::with_seed(seed).u64(1..);
        Self { state }
    }
}

impl Random for SessionRandom {
    #[inline]
    fn next_u64(&mut self) -> u64 {
        if self.state == 0 {
            self.state = fresh_seed();
        }
        let mut generator = fastrand::Rng::with_seed(self.state);
        let bits = generator.u64(..);
        self.state = generator.get_seed();
        bits
    }
}

/// The random source of a driver: its own stream, or one of its caller, boxed.
pub(crate) enum RandomSource<'p> {
    Session(SessionRandom),
    Other(Box<dyn Random + Send + 'p>),
}

impl RandomSource<'_> {
    pub(crate) const NEW: Self = Self::Session(SessionRandom::new());

    pub(crate) fn with_seed(seed: u64) -> Self {
        Self::Session(SessionRandom::with_seed(seed))
    }
}

impl Random for RandomSource<'_> {
    #[inline]
    fn next_u64(&mut self) -> u64 {
        match self {
            Self::Session(random) => random.next_u64(),
            Self::Other(random) => random.next_u64(),
        }
    }
}

#[cold]
fn fresh_seed() -> u64 {
    fastrand::Rng::new().get_seed()
}
