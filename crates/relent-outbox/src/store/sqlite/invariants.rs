//! Invariants of deliveries and endpoints after a change of state.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension};

/// Endpoints and order keys whose deliveries have changed state.
#[derive(Default)]
pub(super) struct Touched {
    /// The earliest due time among deliveries that became pending; `None` if the endpoint's wake-up must be computed.
    endpoints: BTreeMap<i64, Option<i64>>,
    orders: BTreeSet<(i64, String)>,
}

impl Touched {
    pub(super) fn add(&mut self, endpoint: i64, order: Option<String>) {
        self.endpoints.insert(endpoint, None);
        if let Some(order) = order {
            self.orders.insert((endpoint, order));
        }
    }

    /// Adds a delivery without order key that became pending.
    pub(super) fn waits(&mut self, endpoint: i64, due: i64) {
        let earliest = self.endpoints.entry(endpoint).or_insert(Some(due));
        *earliest = earliest.map(|earliest| earliest.min(due));
    }

    /// Restores the invariants.
    pub(super) fn follow(self, connection: &Connection) -> rusqlite::Result<()> {
        for (endpoint, order) in &self.orders {
            advance(connection, *endpoint, order)?;
        }
        let mut earlier = connection.prepare_cached(EARLIER)?;
        for (endpoint, due) in self.endpoints {
            if let Some(due) = due {
                earlier.execute((endpoint, due))?;
            } else {
                wake(connection, endpoint)?;
            }
        }
        Ok(())
    }
}

/// Lets the first message of an order key be claimed, unless one of the key is running. Others are put behind (state
/// 5), where no claim looks, so that a long queue costs no more than a short one.
fn advance(connection: &Connection, endpoint: i64, order: &str) -> rusqlite::Result<()> {
    let running = connection
        .prepare_cached(RUNNING)?
        .exists((endpoint, order))?;
    let first: Option<i64> = if running {
        None
    } else {
        connection
            .prepare_cached(FIRST)?
            .query_row((endpoint, order), |row| row.get(0))?
    };
    let mut hold = connection.prepare_cached(
        "UPDATE relent_delivery_1 SET state = 5
         WHERE endpoint = ?1 AND order_key = ?2 AND state = 0 AND row IS NOT ?3",
    )?;
    hold.execute((endpoint, order, first))?;
    let mut free = connection
        .prepare_cached("UPDATE relent_delivery_1 SET state = 0 WHERE row = ?1 AND state = 5")?;
    free.execute([first])?;
    Ok(())
}

pub(super) const RUNNING: &str =
    "SELECT 1 FROM relent_delivery_1 WHERE endpoint = ?1 AND order_key = ?2 AND state = 1";
pub(super) const FIRST: &str = "
    WITH line AS NOT MATERIALIZED (SELECT row, state FROM relent_delivery_1 WHERE endpoint = ?1 AND order_key = ?2)
    SELECT min(row) FROM (
        SELECT min(row) AS row FROM line WHERE state = 0
        UNION ALL SELECT min(row) FROM line WHERE state = 5
        UNION ALL SELECT min(row) FROM line
            WHERE state = 3 AND EXISTS (SELECT 1 FROM relent_endpoint_1 WHERE id = ?1 AND on_dead_letter = 0))";

/// Moves the wake-up of an endpoint to this time, if it is later.
pub(super) const EARLIER: &str =
    "UPDATE relent_endpoint_1 SET wake = ?2 WHERE id = ?1 AND (wake IS NULL OR wake > ?2)";
pub(super) const WAKE: &str =
    "SELECT fence + (owner = ''), wake FROM relent_endpoint_1 WHERE id = ?1";
pub(super) const FIND_LEFT_RUNNING: &str =
    "SELECT 1 FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 1 AND fence < ?2";
pub(super) const NEXT: &str =
    "SELECT due FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 0 ORDER BY due";

/// Stores the time at which a worker must next serve the endpoint.
pub(super) fn wake(connection: &Connection, endpoint: i64) -> rusqlite::Result<()> {
    let found = connection
        .prepare_cached(WAKE)?
        .query_row([endpoint], |row| Ok((row.get(0)?, row.get(1)?)));
    let found: Option<(i64, Option<i64>)> = found.optional()?;
    let Some((fence, was)) = found else {
        return Ok(());
    };
    let left = connection
        .prepare_cached(FIND_LEFT_RUNNING)?
        .exists((endpoint, fence))?;
    let is = if left {
        Some(0)
    } else {
        let mut next = connection.prepare_cached(NEXT)?;
        // Due immediately if its due time is not a number: a claim marks it as dead.
        let due = next.query_row([endpoint], |row| Ok(row.get(0).unwrap_or_default()));
        due.optional()?
    };
    set_wake(connection, endpoint, was, is)
}

/// Stores a known wake-up.
pub(super) fn set_wake(
    connection: &Connection,
    endpoint: i64,
    was: Option<i64>,
    is: Option<i64>,
) -> rusqlite::Result<()> {
    if was != is {
        let mut set =
            connection.prepare_cached("UPDATE relent_endpoint_1 SET wake = ?2 WHERE id = ?1")?;
        set.execute((endpoint, is))?;
    }
    Ok(())
}
