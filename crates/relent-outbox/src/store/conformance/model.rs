//! Comparison of a store with a small model.

use std::time::Duration;

use super::shop::{LONG, Shop, endpoint, settled};
use crate::endpoint::{Activity, OnDeadLetter};
use crate::message::{MessageId, NewMessage};
use crate::store::{
    AfterAttempt, ClaimOrder, ClaimRequest, Claimed, Fence, Filter, MessageState, Store,
};

/// Runs one step per number on an empty store and on a small model, and compares all results. Two workers take part,
/// which die and return. Any numbers are valid steps, so a generator of random cases can create and shrink them.
///
/// # Panics
/// If the store fails or differs from the model, with the history of steps.
///
/// ```
/// use relent_outbox::store::{Sqlite, conformance};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let store = Sqlite::open(directory.path().join("outbox.db"))?;
/// conformance::play(&store, &[17, 4711, 815, 42]).await;
/// # Ok(())
/// # }
/// ```
pub async fn play<S: Store>(store: &S, steps: &[u32]) {
    let mut model = Model::begin(store).await;
    for step in steps {
        let mut draw = Choices(*step);
        model.step(&mut draw).await;
        model.compare().await;
    }
}

/// Decodes choices from a number.
struct Choices(u32);

impl Choices {
    fn below(&mut self, bound: u32) -> usize {
        let drawn = self.0 % bound;
        self.0 /= bound;
        drawn as usize
    }

    fn one_in(&mut self, many: u32) -> bool {
        self.below(many) == 0
    }
}

const ENDPOINTS: [&str; 2] = ["shop", "bank"];
const WORKERS: [&str; 2] = ["first", "second"];
/// Added to the due step of messages with a delay of an hour.
const DELAYED_STEPS: u64 = 1 << 32;

#[derive(Clone, Debug)]
struct EndpointModel {
    id: i64,
    name: &'static str,
    active: bool,
    block: bool,
    owner: Option<usize>,
    fence: Fence,
    health: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Row {
    id: MessageId,
    place: usize,
    event: usize,
    state: MessageState,
    /// The step in which it is due.
    due: u64,
    fence: Fence,
    attempt: u32,
    /// The number of times it was resent or unsent. A result of an earlier schedule does not apply to a later attempt.
    schedule: u32,
    session: Vec<u8>,
    reason: String,
}

struct Model<S> {
    shop: Shop<S>,
    time: u64,
    places: Vec<EndpointModel>,
    alive: [bool; 2],
    rows: Vec<Row>,
    /// All claimed messages, with their `schedule`.
    claimed: Vec<(Claimed, u32)>,
    history: Vec<String>,
}

/// The order key: none for every third event, one of two for the others.
fn order(event: usize) -> Option<String> {
    match event % 3 {
        0 => None,
        key => Some(format!("key {key}")),
    }
}

fn message(place: &str, event: usize) -> NewMessage {
    let mut message = NewMessage::new(place, event.to_string(), event.to_string());
    message.order = order(event);
    message
}

impl<S: Store> Model<S> {
    async fn begin(store: &S) -> Self {
        let shop = Shop(store.clone());
        let mut places = Vec::new();
        for name in ENDPOINTS {
            shop.put(endpoint(name)).await;
            // Only `find_work` returns the row of an endpoint.
            shop.enqueue([message(name, 0)]).await;
            let id = shop.work(WORKERS[0]).await[0];
            assert_eq!(shop.0.cancel(Filter::default()).await.unwrap(), 1);
            assert_eq!(shop.0.purge(Duration::ZERO, 1).await.unwrap(), 1);
            places.push(EndpointModel {
                id,
                name,
                active: true,
                block: true,
                owner: None,
                fence: Fence(i64::MIN),
                health: Vec::new(),
            });
        }
        Self {
            shop,
            time: 0,
            places,
            alive: [false; 2],
            rows: Vec::new(),
            claimed: Vec::new(),
            history: Vec::new(),
        }
    }

    fn history_text(&self) -> String {
        self.history.join("\n")
    }

    /// The other messages of the same endpoint and order key.
    fn others_of_key(&self, row: usize) -> impl Iterator<Item = usize> {
        let of = |row: &Row| order(row.event).map(|order| (row.place, order));
        let this = of(&self.rows[row]);
        let others = (0..self.rows.len()).filter(move |other| *other != row);
        others.filter(move |other| this.is_some() && of(&self.rows[*other]) == this)
    }

    /// Whether another message of its order key blocks it: an earlier one that waits or blocks, or any running one.
    fn is_blocked(&self, row: usize) -> bool {
        let block = self.places[self.rows[row].place].block;
        self.others_of_key(row)
            .any(|other| match self.rows[other].state {
                MessageState::Running => true,
                MessageState::Pending => other < row,
                MessageState::Dead => other < row && block,
                MessageState::Delivered | MessageState::Cancelled => false,
            })
    }

    /// Whether it is a dead letter that blocks a later message of its order key.
    fn holds(&self, row: usize) -> bool {
        let one = &self.rows[row];
        let waits = |other: usize| other > row && self.rows[other].state == MessageState::Pending;
        one.state == MessageState::Dead
            && self.places[one.place].block
            && self.others_of_key(row).any(waits)
    }

    /// The rows of an endpoint that may be claimed by `until`, the earliest due first.
    fn due(&self, place: usize, until: u64) -> Vec<usize> {
        let mut due: Vec<_> = (0..self.rows.len())
            .filter(|row| {
                let one = &self.rows[*row];
                let waits =
                    one.place == place && one.state == MessageState::Pending && one.due <= until;
                waits && !self.is_blocked(*row)
            })
            .collect();
        due.sort_by_key(|row| self.rows[*row].due);
        due
    }

    /// The rows of an endpoint that an earlier owner has left running.
    fn left(&self, place: usize) -> Vec<usize> {
        let EndpointModel { owner, fence, .. } = self.places[place];
        let left = |row: &usize| {
            let one = &self.rows[*row];
            let running = one.place == place && one.state == MessageState::Running;
            running && (owner.is_none() || one.fence < fence)
        };
        (0..self.rows.len()).filter(left).collect()
    }

    async fn step(&mut self, draw: &mut Choices) {
        self.time += 1;
        match draw.below(12) {
            0..3 => self.enqueue(draw).await,
            3 => self.heartbeat(draw.below(2), draw.one_in(5)).await,
            4 => self.acquire(draw.below(2), draw.below(2)).await,
            5 => self.release(draw).await,
            6 | 7 => self.claim(draw).await,
            8 | 9 => self.settle(draw).await,
            10 => self.operate(draw).await,
            _ => self.change(draw).await,
        }
    }

    async fn enqueue(&mut self, draw: &mut Choices) {
        let (place, delayed) = (draw.below(2), draw.one_in(4));
        let delay = if delayed { LONG } else { Duration::ZERO };
        let events: Vec<_> = (0..=draw.below(3)).map(|_| draw.below(9)).collect();
        self.say(&format!(
            "enqueue {events:?} for {place}, delayed: {delayed}"
        ));
        let messages = events
            .iter()
            .map(|event| message(ENDPOINTS[place], *event).delay(delay));
        let answers = self.shop.enqueue(messages).await;
        for (event, answer) in events.into_iter().zip(answers) {
            let there = |row: &&Row| (row.place, row.event) == (place, event);
            let there = self.rows.iter().find(there).map(|row| &row.id);
            let was = there.is_some();
            assert_eq!(answer.duplicate, was, "{}", self.history_text());
            assert!(
                there.is_none_or(|id| *id == answer.id),
                "{}",
                self.history_text()
            );
            if !was {
                self.rows.push(Row {
                    id: answer.id,
                    place,
                    event,
                    state: MessageState::Pending,
                    due: self.time + if delayed { DELAYED_STEPS } else { 0 },
                    fence: Fence(i64::MIN),
                    attempt: 0,
                    schedule: 0,
                    session: Vec::new(),
                    reason: String::new(),
                });
            }
        }
    }

    async fn heartbeat(&mut self, worker: usize, dies: bool) {
        self.say(&format!("heartbeat of {worker}, dies: {dies}"));
        let lease = if dies { Duration::ZERO } else { LONG };
        let heartbeat = self
            .shop
            .0
            .heartbeat(WORKERS[worker], lease, true)
            .await
            .unwrap();
        assert_eq!(
            heartbeat.kept,
            self.alive[worker],
            "{}",
            self.history_text()
        );
        self.alive[worker] = !dies;
        if dies {
            for place in &mut self.places {
                place.owner = place.owner.filter(|owner| *owner != worker);
            }
        }
        let active = self.places.iter().filter(|place| place.active).count();
        let live = self.alive.iter().filter(|alive| **alive).count();
        assert_eq!(
            heartbeat.share,
            active.div_ceil(live.max(1)),
            "{}",
            self.history_text()
        );
    }

    async fn acquire(&mut self, worker: usize, place: usize) {
        self.say(&format!("acquire {place} for {worker}"));
        let ids = vec![self.places[place].id];
        let answer = self.shop.0.acquire(WORKERS[worker], ids).await.unwrap();
        let is = &mut self.places[place];
        let takes = self.alive[worker] && is.active && is.owner.is_none_or(|owner| owner == worker);
        assert_eq!(answer.len(), usize::from(takes), "{}", self.history_text());
        if let Some(owned) = answer.first() {
            assert!(owned.fence > is.fence, "{}", self.history.join("\n"));
            assert_eq!((owned.id, &owned.health), (is.id, &is.health));
            (is.owner, is.fence) = (Some(worker), owned.fence);
        }
    }

    /// The current fencing token of an endpoint, or an earlier one.
    fn fence(&self, place: usize, draw: &mut Choices) -> Fence {
        let Fence(fence) = self.places[place].fence;
        Fence(fence.saturating_sub(i64::from(draw.one_in(6))))
    }

    /// An endpoint with its owner, or with any worker.
    fn owned(&self, draw: &mut Choices) -> (usize, usize) {
        let (place, anybody, other) = (draw.below(2), draw.below(2), draw.one_in(5));
        let owner = self.places[place].owner.filter(|_| !other);
        (owner.unwrap_or(anybody), place)
    }

    async fn release(&mut self, draw: &mut Choices) {
        let (worker, place) = self.owned(draw);
        let fence = self.fence(place, draw);
        self.say(&format!("release {place} of {worker}, {fence:?}"));
        let is = &mut self.places[place];
        let released = self.shop.0.release(WORKERS[worker], vec![(is.id, fence)]);
        released.await.unwrap();
        if is.owner == Some(worker) && is.fence == fence {
            is.owner = None;
        }
    }

    async fn claim(&mut self, draw: &mut Choices) {
        let ((worker, place), most) = (self.owned(draw), draw.below(4));
        if !draw.one_in(5) {
            if !self.alive[worker] {
                self.heartbeat(worker, false).await;
            }
            if self.places[place].owner.is_none() {
                self.acquire(worker, place).await;
            }
        }
        let fence = self.fence(place, draw);
        self.say(&format!("claim {most} at {place} for {worker}, {fence:?}"));
        let revision = self.revision(place).await;
        let is = &self.places[place];
        let wanted = ClaimRequest {
            endpoint: is.id,
            fence,
            revision,
            most,
            first: ClaimOrder::Due,
        };
        let may = self.alive[worker] && is.active && is.owner == Some(worker) && is.fence == fence;
        let answer = self
            .shop
            .0
            .claim(WORKERS[worker], vec![wanted])
            .await
            .unwrap();
        assert_eq!(answer.changed, []);
        let answer = answer.messages;
        let (mut left, mut due) = (Vec::new(), Vec::new());
        if may {
            left = self.left(place);
            due = self.due(place, self.time);
        }
        let history_text = self.history_text();
        let number = |claimed: &Claimed| self.rows.iter().position(|row| row.id == claimed.id);
        let found: Vec<_> = answer.iter().map(|one| number(one).unwrap()).collect();
        let lost = left.len().min(most);
        let sent = due.len().min(most - lost);
        assert_eq!(found.len(), lost + sent, "{answer:?}\n{history_text}");
        // Lost messages come first, in any order.
        assert!(
            found[..lost].iter().all(|row| left.contains(row)),
            "{history_text}"
        );
        assert_eq!(found[lost..], due[..sent], "{history_text}");
        for (place, claimed) in answer.into_iter().enumerate() {
            let row = &mut self.rows[found[place]];
            row.state = MessageState::Running;
            row.fence = fence;
            row.attempt += u32::from(place >= lost);
            assert_eq!(claimed.lost, place < lost, "{history_text}");
            let is = (
                claimed.attempt,
                &claimed.session,
                claimed.fence,
                claimed.ordered,
            );
            assert_eq!(
                is,
                (row.attempt, &row.session, fence, order(row.event).is_some()),
                "{history_text}"
            );
            self.claimed.push((claimed, row.schedule));
        }
    }

    /// The revision of an endpoint; zero if it is not registered.
    async fn revision(&self, place: usize) -> i64 {
        let name = self.places[place].name;
        let status = self.shop.0.endpoint("", name).await.unwrap();
        status.map_or(0, |status| status.revision)
    }

    async fn settle(&mut self, draw: &mut Choices) {
        if self.claimed.is_empty() {
            return;
        }
        // Prefer the latest claims.
        let many = self.claimed.len();
        let back = if draw.one_in(4) {
            draw.below(many as u32)
        } else {
            draw.below(many.min(4) as u32)
        };
        let (claimed, schedule) = self.claimed[many - 1 - back].clone();
        let (next, disable) = (draw.below(6), draw.one_in(12));
        let next = match next {
            0 => AfterAttempt::Delivered,
            1 => AfterAttempt::Unsent,
            2 | 3 => AfterAttempt::Again(Duration::ZERO),
            4 => AfterAttempt::Again(LONG),
            _ => AfterAttempt::Dead(format!("dead in step {}", self.time)),
        };
        self.say(&format!(
            "settle {} of {:?} with {next:?}, disables: {disable}",
            claimed.id, claimed.fence
        ));
        let mut written = settled(&claimed, next.clone());
        written.session = vec![self.time as u8, 0];
        written.health = Some(vec![self.time as u8]);
        written.disable = disable.then(|| "it fails".to_owned());
        // Health counts only if the endpoint is unchanged since the claim.
        let at = self.rows.iter().find(|row| row.id == claimed.id);
        let is_same = match at {
            Some(row) => self.revision(row.place).await == claimed.revision,
            None => false,
        };
        let answer = self.shop.write(written.clone()).await;
        let history_text = self.history_text();
        let row = self.rows.iter_mut().find(|row| row.id == claimed.id);
        let row = row.filter(|row| {
            let is = (row.state, row.fence, row.attempt, row.schedule);
            is == (
                MessageState::Running,
                claimed.fence,
                claimed.attempt,
                schedule,
            ) && self.places[row.place].fence == claimed.fence
        });
        assert_eq!(answer, row.is_some(), "{history_text}");
        let Some(row) = row else { return };
        let place = &mut self.places[row.place];
        row.session = written.session;
        if is_same {
            place.health = written.health.unwrap_or_default();
            place.active &= !disable;
        }
        match next {
            AfterAttempt::Delivered => row.state = MessageState::Delivered,
            AfterAttempt::Dead(reason) => (row.state, row.reason) = (MessageState::Dead, reason),
            AfterAttempt::Unsent | AfterAttempt::Held(..) => {
                (row.state, row.attempt) = (MessageState::Pending, row.attempt - 1);
                row.schedule += 1;
            }
            AfterAttempt::Again(wait) => {
                let later = if wait.is_zero() { 0 } else { DELAYED_STEPS };
                (row.state, row.due) = (MessageState::Pending, self.time + later);
            }
        }
    }

    /// Enables, disables or registers an endpoint.
    async fn operate(&mut self, draw: &mut Choices) {
        let (place, what) = (draw.below(2), draw.below(4));
        self.say(&format!("change the endpoint {place}: {what}"));
        let is = &mut self.places[place];
        match what {
            0 => is.active = false,
            1 | 2 => {
                if !is.active {
                    is.health.clear();
                }
                is.active = true;
            }
            _ => is.block = !is.block,
        }
        if what < 3 {
            let activity = if is.active {
                Activity::Active
            } else {
                Activity::Disabled
            };
            let set = self.shop.0.set_activity("", is.name, activity, "by hand");
            assert!(set.await.unwrap());
        } else {
            let rule = if is.block {
                OnDeadLetter::Block
            } else {
                OnDeadLetter::Skip
            };
            self.shop.put(endpoint(is.name).on_dead_letter(rule)).await;
        }
    }

    /// Resends, cancels, sends now or purges.
    async fn change(&mut self, draw: &mut Choices) {
        let (what, all, in_line) = (draw.below(6), draw.one_in(3), draw.one_in(2));
        // Prefer messages that share the order key of a running one.
        let runs = |other: usize| self.rows[other].state == MessageState::Running;
        let meant = |row: &usize| !in_line || self.others_of_key(*row).any(runs);
        let mut meant: Vec<_> = (0..self.rows.len()).filter(meant).collect();
        if meant.is_empty() {
            meant = (0..self.rows.len()).collect();
        }
        let one = meant.get(draw.below(meant.len().max(1) as u32));
        let one = one.map(|row| self.rows[*row].id.clone());
        let filter = Filter {
            id: one.filter(|_| !all),
            ..Filter::default()
        };
        self.say(&format!(
            "resend (0, 1), cancel (2, 3), send now (4) or purge: {what}, {filter:?}"
        ));
        let time = self.time;
        let history_text = self.history_text();
        let meant = |row: &Row| filter.id.as_ref().is_none_or(|id| *id == row.id);
        let ended = |row: &Row| {
            matches!(
                row.state,
                MessageState::Delivered | MessageState::Dead | MessageState::Cancelled
            )
        };
        let mut changed = 0;
        let answer = match what {
            0 | 1 => {
                for row in self.rows.iter_mut().filter(|row| meant(row) && ended(row)) {
                    (row.state, row.due, row.attempt) = (MessageState::Pending, time, 0);
                    row.schedule += 1;
                    (row.session, row.reason) = (b"r".to_vec(), String::new());
                    changed += 1;
                }
                self.shop.0.resend(filter.clone()).await
            }
            2 | 3 => {
                for row in self.rows.iter_mut().filter(|row| meant(row)) {
                    if matches!(row.state, MessageState::Pending | MessageState::Dead) {
                        row.state = MessageState::Cancelled;
                        changed += 1;
                    }
                }
                self.shop.0.cancel(filter.clone()).await
            }
            4 => {
                for row in self.rows.iter_mut().filter(|row| meant(row)) {
                    if row.state == MessageState::Pending {
                        row.due = row.due.min(time);
                        changed += 1;
                    }
                }
                self.shop.0.send_now(filter.clone()).await
            }
            _ => {
                let stay =
                    (0..self.rows.len()).map(|row| !ended(&self.rows[row]) || self.holds(row));
                let mut stay = stay.collect::<Vec<_>>().into_iter();
                let before = self.rows.len();
                self.rows.retain(|_| stay.next().unwrap());
                changed = (before - self.rows.len()) as u64;
                self.shop.0.purge(Duration::ZERO, 1000).await
            }
        };
        assert_eq!(answer.unwrap(), changed, "{history_text}");
    }

    fn say(&mut self, words: &str) {
        self.history.push(format!("{}: {words}", self.time));
    }

    /// Compares the readable state of the store with the model.
    async fn compare(&mut self) {
        let history_text = self.history_text();
        let found = self.shop.0.messages(Filter::default(), 1000).await.unwrap();
        assert_eq!(found.len(), self.rows.len(), "{history_text}");
        for (found, row) in found.iter().rev().zip(&self.rows) {
            let is = (
                &found.id,
                &found.endpoint[..],
                &found.event,
                found.state,
                found.attempts,
            );
            let place = self.places[row.place].name;
            assert_eq!(
                is,
                (
                    &row.id,
                    place,
                    &row.event.to_string(),
                    row.state,
                    row.attempt
                ),
                "{history_text}"
            );
            if row.state == MessageState::Dead {
                assert_eq!(found.reason, row.reason, "{history_text}");
            }
        }
        let count = |state| self.rows.iter().filter(|row| row.state == state).count() as u64;
        let summary = self.shop.0.summary().await.unwrap();
        let is = (summary.pending, summary.running, summary.dead);
        let expected = (
            count(MessageState::Pending),
            count(MessageState::Running),
            count(MessageState::Dead),
        );
        assert_eq!(is, expected, "{history_text}");
        assert_eq!(
            summary.disabled,
            self.places.iter().filter(|place| !place.active).count() as u64
        );

        for (worker, until) in [(0, self.time), (1, self.time + 2 * DELAYED_STEPS)] {
            let within = if until == self.time {
                Duration::ZERO
            } else {
                LONG * 2
            };
            let found = self
                .shop
                .0
                .find_work(WORKERS[worker], within, 10)
                .await
                .unwrap();
            for (number, place) in self.places.iter().enumerate() {
                let may = place.active && place.owner.is_none_or(|owner| owner == worker);
                let left = !self.left(number).is_empty();
                let due = self.due(number, until);
                let work = found.iter().find(|work| work.endpoint == place.id);
                // An endpoint may be listed for messages that wait behind others.
                let behind = self.rows.iter().enumerate().any(|(row, one)| {
                    let waits = one.place == number && one.state == MessageState::Pending;
                    waits && one.due <= until && self.is_blocked(row)
                });
                let there = may && (left || !due.is_empty());
                assert!(
                    work.is_some() == there || work.is_some() && may && behind,
                    "work at {number} for {worker}\n{history_text}"
                );
                let Some(work) = work else { continue };
                assert_eq!(
                    work.owned,
                    place.owner.map(|_| place.fence),
                    "{history_text}"
                );
                if !behind {
                    let now = left || self.rows[due[0]].due <= self.time;
                    assert_eq!(work.due.is_zero(), now, "{history_text}");
                }
            }
        }
    }
}
