//! A group of threads that wait for each other: all of them start, or none.

use std::sync::{PoisonError, RwLock};

/// Runs each job on a thread of its own and gives their results in order. None begins before all
/// threads exist, so that no job waits for one that cannot come. A panic in a job is one here as
/// well.
///
/// # Errors
/// When the system starts no further thread; no job has run then.
pub fn all_or_none<R: Send>(
    jobs: impl IntoIterator<Item = impl FnOnce() -> R + Send>,
) -> std::io::Result<Vec<R>> {
    let all_started = RwLock::new(false);
    std::thread::scope(|scope| {
        // Nothing that holds the lock can panic.
        let mut gate = all_started.write().unwrap_or_else(PoisonError::into_inner);
        let all_started = &all_started;
        let start = |job| {
            std::thread::Builder::new().spawn_scoped(scope, move || {
                let go = *all_started.read().unwrap_or_else(PoisonError::into_inner);
                go.then(job)
            })
        };
        let threads: std::io::Result<Vec<_>> = jobs.into_iter().map(start).collect();
        *gate = threads.is_ok();
        drop(gate);
        let join = |t: std::thread::ScopedJoinHandle<'_, Option<R>>| {
            t.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        // Behind an open gate each job has run.
        Ok(threads?.into_iter().filter_map(join).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_wait_for_each_other_run_and_answer_in_order() {
        let meet = std::sync::Barrier::new(4);
        let job = |i: usize| {
            let meet = &meet;
            move || {
                meet.wait();
                i * 7
            }
        };
        let got = all_or_none((0..4).map(job)).expect("four threads");
        assert_eq!(got, [0, 7, 14, 21]);
    }
}
