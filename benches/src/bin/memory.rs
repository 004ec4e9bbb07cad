//! Prints allocations and bytes for each call of each row, and the size of the futures.

use std::alloc::System;

use relent_benches::subjects::FUTURES;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const FEW: u64 = 1000;
const MANY: u64 = 11_000;

fn main() {
    println!("# allocations");
    for row in relent_benches::rows() {
        // The setup of a thread, such as its random generator, does not count for a call.
        (row.run)(1);
        let count = |n| {
            let region = Region::new(ALLOCATOR);
            (row.run)(n);
            let change = region.change();
            (
                change.allocations + change.reallocations,
                change.bytes_allocated,
            )
        };
        // The difference of two numbers of calls excludes the setup of a row.
        let ((few, few_bytes), (many, many_bytes)) = (count(FEW), count(MANY));
        let each = |few: usize, many: usize| (many as f64 - few as f64) / (MANY - FEW) as f64;
        println!(
            "{row:?}\t{}\t{}",
            each(few, many),
            each(few_bytes, many_bytes)
        );
    }
    println!("# futures");
    for (subject, size) in FUTURES {
        println!("{subject}\t{}", size());
    }
}
