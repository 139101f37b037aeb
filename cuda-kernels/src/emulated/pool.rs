//! The threads that run blocks: one OS thread per running block, kept from launch to launch.
//!
//! Blocks beyond the limit wait until others end, as blocks beyond a GPU's residency do. Therefore
//! blocks that wait for each other must not be more than `max_threads`.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::locks::lock;

/// Something to run on a thread of the pool.
pub(super) type BlockJob = Box<dyn FnOnce() + Send>;

struct PoolState {
    jobs: VecDeque<BlockJob>,
    idle: usize,
    threads: usize,
    closing: bool,
}

struct PoolShared {
    state: Mutex<PoolState>,
    work: Condvar,
    max_threads: usize,
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // A job that panicked has already been counted out; the state itself is consistent.
        lock(&self.state)
    }
}

/// A pool of worker threads. Dropping it lets idle workers end; a worker whose kernel never ends is
/// left to itself (it keeps the memory it uses alive).
pub(super) struct Pool(Arc<PoolShared>);

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.0.lock().threads)
    }
}

impl Pool {
    pub(super) fn new(max_threads: usize) -> Pool {
        Pool(Arc::new(PoolShared {
            state: Mutex::new(PoolState {
                jobs: VecDeque::new(),
                idle: 0,
                threads: 0,
                closing: false,
            }),
            work: Condvar::new(),
            max_threads: max_threads.max(1),
        }))
    }

    /// Queues jobs and starts the threads they need.
    ///
    /// # Errors
    /// When no thread at all can be started; the jobs are dropped then.
    pub(super) fn submit(&self, jobs: impl IntoIterator<Item = BlockJob>) -> std::io::Result<()> {
        let mut s = self.0.lock();
        let before = s.jobs.len();
        s.jobs.extend(jobs);
        while s.threads < self.0.max_threads && s.jobs.len() > s.idle {
            let shared = self.0.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("rb-gpu-{}", s.threads))
                .stack_size(4 << 20)
                .spawn(move || worker(&shared));
            match spawned {
                Ok(_) => {
                    s.threads += 1;
                    // It counts as idle until it has taken a job, or the loop would start too many.
                    s.idle += 1;
                }
                // Fewer threads than blocks still make progress, as long as there is one.
                Err(_) if s.threads > 0 => break,
                Err(e) => {
                    s.jobs.truncate(before);
                    return Err(e);
                }
            }
        }
        drop(s);
        self.0.work.notify_all();
        Ok(())
    }
}

fn worker(shared: &PoolShared) {
    let mut s = shared.lock();
    loop {
        if let Some(job) = s.jobs.pop_front() {
            s.idle -= 1;
            drop(s);
            job();
            s = shared.lock();
            s.idle += 1;
        } else if s.closing {
            s.idle -= 1;
            s.threads -= 1;
            return;
        } else {
            s = shared.work.wait(s).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.lock().closing = true;
        self.0.work.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_up_to_the_limit_run_together_and_threads_are_reused() {
        let pool = Pool::new(4);
        let barrier = Arc::new(std::sync::Barrier::new(4));
        for _ in 0..3 {
            let (tx, rx) = channel();
            pool.submit((0..4).map(|_| {
                let (b, tx) = (barrier.clone(), tx.clone());
                Box::new(move || {
                    b.wait();
                    tx.send(()).unwrap();
                }) as BlockJob
            }))
            .unwrap();
            for _ in 0..4 {
                rx.recv().unwrap();
            }
        }
        assert!(pool.0.lock().threads <= 4);
    }

    #[test]
    fn more_jobs_than_threads_all_run() {
        let pool = Pool::new(2);
        let count = Arc::new(AtomicUsize::new(0));
        let (tx, rx) = channel();
        pool.submit((0..50).map(|_| {
            let (c, tx) = (count.clone(), tx.clone());
            Box::new(move || {
                c.fetch_add(1, Ordering::Relaxed);
                tx.send(()).unwrap();
            }) as BlockJob
        }))
        .unwrap();
        for _ in 0..50 {
            rx.recv().unwrap();
        }
        assert_eq!(count.load(Ordering::Relaxed), 50);
    }
}
