//! The destinations of the processes: [`relent_core::Destination`] where one thread plays all callers.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use relent_core::{Access, Answer, Destination, Outbound, Policy, Random};

use crate::stream::Stream;

/// The destination of each process, and of each layer in it.
pub(crate) struct Destinations {
    all: Vec<Destination<OneThread>>,
    random: SharedStream,
}

/// How an outbound is reached: there is nobody to be locked out.
pub(crate) struct OneThread(RefCell<Shared>);

struct Shared {
    outbound: Outbound,
    random: SharedStream,
    /// The calls that wait, by their numbers at the destination, of which a run makes fewer than 2³².
    waiters: HashMap<u32, u32, BuildHasherDefault<NumberHasher>>,
    /// The calls to be woken.
    woken: Vec<u32>,
}

impl Destinations {
    pub(crate) fn new(policy: &Policy, count: u32, random: Stream) -> Self {
        let random = SharedStream(Rc::new(RefCell::new(random)));
        Self {
            all: (0..count).map(|_| fresh(policy, &random)).collect(),
            random,
        }
    }

    pub(crate) fn get(&self, number: u32) -> &Destination<OneThread> {
        &self.all[number as usize]
    }

    /// The destination forgets everything. There must be no call at it.
    pub(crate) fn renew(&mut self, policy: &Policy, number: u32) {
        self.all[number as usize] = fresh(policy, &self.random);
    }

    fn shared(&self, number: u32) -> RefMut<'_, Shared> {
        self.get(number).access().0.borrow_mut()
    }

    /// The calls that were woken since this was last asked, if any were.
    #[inline]
    pub(crate) fn take_woken(&self, number: u32) -> Option<Vec<u32>> {
        let woken = &mut self.shared(number).woken;
        (!woken.is_empty()).then(|| std::mem::take(woken))
    }
}

/// A destination that knows nothing yet.
fn fresh(policy: &Policy, random: &SharedStream) -> Destination<OneThread> {
    Destination::new(
        policy,
        Outbound::new(policy).with_certain_wakes(),
        |outbound| {
            OneThread(RefCell::new(Shared {
                outbound,
                random: random.clone(),
                waiters: HashMap::default(),
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
        let result = change(&mut shared.outbound, &mut shared.random);
        if shared.outbound.has_woken() {
            let woken = shared.outbound.take_woken().into_iter();
            shared
                .woken
                .extend(woken.filter_map(|id| shared.waiters.remove(&(id as u32))));
        }
        result
    }

    fn ask(
        &self,
        id: u64,
        waker: Option<&u32>,
        ask: impl FnOnce(&mut Outbound, &mut SharedStream) -> Answer,
    ) -> Answer {
        let answer = self.turn(ask);
        let waiters = &mut self.0.borrow_mut().waiters;
        match (&answer, waker) {
            (Answer::Wait(..), Some(call)) => {
                waiters.insert(id as u32, *call);
            }
            _ if !waiters.is_empty() => {
                waiters.remove(&(id as u32));
            }
            _ => {}
        }
        answer
    }

    fn leave(&self, id: u64, leave: impl FnOnce(&mut Outbound, &mut SharedStream) -> bool) -> bool {
        self.0.borrow_mut().waiters.remove(&(id as u32));
        self.turn(leave)
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

/// Numbers that are given out in turn need no hashing.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(31).wrapping_add(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // The table looks at the highest bits and at the lowest.
        self.0 = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
