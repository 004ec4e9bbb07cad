//! The destinations of the processes: [`relent_core::destination::Destination`] with all callers on one thread.

use std::cell::{RefCell, RefMut};
use std::hint::black_box;
use std::rc::Rc;

use relent_core::destination::{Access, Admission, Budget, Destination, Outbound};
use relent_core::{Policy, Random};

use crate::client::NO_CLIENT_OR_ATTEMPT;
use crate::random_stream::Stream;

/// With this many destinations, of more than a kilobyte each, most calls would wait for memory.
const MORE_THAN_CACHES_HOLD: usize = 4096;

/// The destination of each process, and of each layer in it.
pub(crate) struct Destinations {
    all: Vec<Destination<OneThread>>,
    common: SharedByAll,
}

/// Access to an outbound from one thread: no lock is needed.
pub(crate) struct OneThread(RefCell<Shared>);

struct Shared {
    outbound: Outbound,
    common: SharedByAll,
    /// The calls to wake.
    woken: Vec<u32>,
}

/// The state that all destinations share.
#[derive(Clone)]
struct SharedByAll {
    random: SharedStream,
    /// The calls that wait for a wake-up.
    waiting: Rc<RefCell<Set>>,
}

impl Destinations {
    pub(crate) fn new(policy: &Policy, count: u32, random: Stream) -> Self {
        let common = SharedByAll {
            random: SharedStream(Rc::new(RefCell::new(random))),
            waiting: Rc::default(),
        };
        Self {
            all: (0..count)
                .map(|_| new_destination(policy, &common))
                .collect(),
            common,
        }
    }

    pub(crate) fn get(&self, number: u32) -> &Destination<OneThread> {
        &self.all[number as usize]
    }

    /// Whether there are more than the processor's caches hold.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        self.all.len() >= MORE_THAN_CACHES_HOLD
    }

    /// Reads a part of each cache line of the destination that most calls need, so that the processor
    /// loads them together.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32) {
        let destination = self.get(number);
        let shared = self.shared(number);
        let circuit_breaker = shared.outbound.circuit_breaker();
        black_box((
            destination.budget().map(Budget::balance),
            destination.has_responded(),
            circuit_breaker.map(|it| (it.is_normal(), it.queued())),
            (shared.outbound.waiting(), shared.outbound.due()),
            shared.woken.len(),
        ));
    }

    /// Resets the destination to its initial state. No call may use it.
    pub(crate) fn renew(&mut self, policy: &Policy, number: u32) {
        self.all[number as usize] = new_destination(policy, &self.common);
    }

    fn shared(&self, number: u32) -> RefMut<'_, Shared> {
        self.get(number).access().0.borrow_mut()
    }

    /// Takes the calls that were woken since the last time, if any.
    #[inline]
    pub(crate) fn take_woken(&self, number: u32) -> Option<Vec<u32>> {
        let woken = &mut self.shared(number).woken;
        (!woken.is_empty()).then(|| std::mem::take(woken))
    }
}

/// A destination without any history.
fn new_destination(policy: &Policy, common: &SharedByAll) -> Destination<OneThread> {
    Destination::new(
        policy,
        Outbound::new(policy).with_certain_wakes(),
        |outbound| {
            OneThread(RefCell::new(Shared {
                outbound,
                common: common.clone(),
                woken: Vec::new(),
            }))
        },
    )
}

impl Access for OneThread {
    type Random = SharedStream;
    /// The number of the call.
    type Waker = u32;

    #[inline]
    fn turn<T>(&self, change: impl FnOnce(&mut Outbound, &mut SharedStream) -> T) -> T {
        let shared = &mut *self.0.borrow_mut();
        let result = change(&mut shared.outbound, &mut shared.common.random);
        if shared.outbound.has_woken() {
            let mut waiting = shared.common.waiting.borrow_mut();
            let woken = shared.outbound.take_woken().into_iter().map(call_of);
            shared
                .woken
                .extend(woken.filter(|call| waiting.remove(*call)));
        }
        result
    }

    fn ask(
        &self,
        id: u64,
        waker: Option<&u32>,
        ask: impl FnOnce(&mut Outbound, &mut SharedStream) -> Admission,
    ) -> Admission {
        let answer = self.turn(ask);
        let shared = self.0.borrow();
        let mut waiting = shared.common.waiting.borrow_mut();
        match (&answer, waker) {
            (Admission::Wait(..), Some(call)) => waiting.insert(*call),
            _ => {
                waiting.remove(call_of(id));
            }
        }
        answer
    }

    fn leave(
        &self,
        id: u64,
        permit: impl FnOnce(&mut Outbound, &mut SharedStream) -> bool,
    ) -> bool {
        let shared = self.0.borrow();
        shared.common.waiting.borrow_mut().remove(call_of(id));
        drop(shared);
        self.turn(permit)
    }

    /// Its number and, in the lower bits, the call. A caller without a waker never waits, since its retries are off.
    #[inline]
    fn name(&self, number: u64, call: Option<&u32>) -> u64 {
        number << u32::BITS | u64::from(*call.unwrap_or(&NO_CLIENT_OR_ATTEMPT))
    }
}

/// One stream for all destinations.
#[derive(Clone)]
pub(crate) struct SharedStream(Rc<RefCell<Stream>>);

impl Random for SharedStream {
    fn next_u64(&mut self) -> u64 {
        self.0.borrow_mut().next_u64()
    }
}

/// The call in a name: see [`Access::name`].
#[inline]
const fn call_of(name: u64) -> u32 {
    name as u32
}

/// A set of small numbers.
#[derive(Default)]
struct Set(Vec<u64>);

impl Set {
    fn insert(&mut self, number: u32) {
        let word = (number / u64::BITS) as usize;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % u64::BITS);
    }

    /// Returns whether it was there.
    #[inline]
    fn remove(&mut self, number: u32) -> bool {
        let word = self.0.get_mut((number / u64::BITS) as usize);
        word.is_some_and(|word| {
            let bit = 1 << (number % u64::BITS);
            let was_there = *word & bit != 0;
            *word &= !bit;
            was_there
        })
    }
}
