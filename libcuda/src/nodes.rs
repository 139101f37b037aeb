//! Graphs as the driver keeps them: operations, and which come before which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use ringbell_cuda_kernels::Event;

use crate::operation::Operation;
use crate::{lock, Result, INVALID_HANDLE, INVALID_VALUE};

/// An operation of a graph.
#[derive(Clone)]
struct Node {
    operation: Operation,
    before: BTreeSet<usize>,
}

/// The operations of a graph by their handles, which grow.
#[derive(Clone, Default)]
struct Nodes(BTreeMap<usize, Node>);

impl Nodes {
    /// All handles, each behind those before it; nothing if some wait for each other.
    fn order(&self) -> Option<Vec<usize>> {
        let (mut ordered, mut done) = (Vec::new(), BTreeSet::new());
        while ordered.len() < self.0.len() {
            let rest = self.0.iter().filter(|(h, _)| !done.contains(*h));
            let free = rest.filter(|(_, n)| n.before.is_subset(&done));
            let free: Vec<usize> = free.map(|(h, _)| *h).collect();
            if free.is_empty() {
                return None;
            }
            done.extend(free.iter().copied());
            ordered.extend(free);
        }
        Some(ordered)
    }
}

/// A graph that can be launched.
#[derive(Clone)]
pub(crate) struct Exec {
    /// In an order in which each can run.
    pub(crate) steps: Vec<(usize, Operation)>,
    /// The end of the last replay: those of one graph run one after the other.
    pub(crate) last: Option<Event>,
}

#[derive(Default)]
struct Graphs {
    next: usize,
    graphs: BTreeMap<usize, Nodes>,
    /// Graphs of nodes.
    owners: BTreeMap<usize, usize>,
    execs: BTreeMap<usize, Arc<Mutex<Exec>>>,
}

static GRAPHS: Mutex<Graphs> = Mutex::new(Graphs {
    next: 0x6000_0000,
    graphs: BTreeMap::new(),
    owners: BTreeMap::new(),
    execs: BTreeMap::new(),
});

impl Graphs {
    fn fresh(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    fn graph(&mut self, graph: usize) -> std::result::Result<&mut Nodes, Result> {
        self.graphs.get_mut(&graph).ok_or(INVALID_VALUE)
    }

    fn node(&mut self, node: usize) -> std::result::Result<&mut Node, Result> {
        let graph = *self.owners.get(&node).ok_or(INVALID_VALUE)?;
        self.graph(graph)?.0.get_mut(&node).ok_or(INVALID_VALUE)
    }
}

/// A new graph without operations.
pub(crate) fn create() -> usize {
    let mut all = lock(&GRAPHS);
    let handle = all.fresh();
    all.graphs.insert(handle, Nodes::default());
    handle
}

pub(crate) fn destroy(graph: usize) -> std::result::Result<(), Result> {
    let mut all = lock(&GRAPHS);
    all.graphs.remove(&graph).ok_or(INVALID_VALUE)?;
    all.owners.retain(|_, of| *of != graph);
    Ok(())
}

/// A new operation of a graph, behind others of it.
pub(crate) fn add(
    graph: usize,
    operation: Operation,
    before: &[usize],
) -> std::result::Result<usize, Result> {
    let mut all = lock(&GRAPHS);
    let known = &all.graph(graph)?.0;
    if before.iter().any(|b| !known.contains_key(b)) {
        return Err(INVALID_VALUE);
    }
    let handle = all.fresh();
    let before = before.iter().copied().collect();
    let node = Node { operation, before };
    all.graph(graph)?.0.insert(handle, node);
    all.owners.insert(handle, graph);
    Ok(handle)
}

/// Puts an operation of a graph behind another.
pub(crate) fn connect(graph: usize, from: usize, to: usize) -> std::result::Result<(), Result> {
    let mut all = lock(&GRAPHS);
    let nodes = all.graph(graph)?;
    if from == to || !nodes.0.contains_key(&from) {
        return Err(INVALID_VALUE);
    }
    let behind = nodes.0.get_mut(&to).ok_or(INVALID_VALUE)?;
    // There are no two ways from one to another.
    match behind.before.insert(from) {
        true => Ok(()),
        false => Err(INVALID_VALUE),
    }
}

/// Handles of a graph's operations.
pub(crate) fn list(graph: usize) -> std::result::Result<Vec<usize>, Result> {
    Ok(lock(&GRAPHS).graph(graph)?.0.keys().copied().collect())
}

/// The operation of a node.
pub(crate) fn operation(node: usize) -> std::result::Result<Operation, Result> {
    Ok(lock(&GRAPHS).node(node)?.operation.clone())
}

/// Gives a node another operation.
pub(crate) fn replace(node: usize, operation: Operation) -> std::result::Result<(), Result> {
    lock(&GRAPHS).node(node)?.operation = operation;
    Ok(())
}

/// Those of `nodes` that do not come before any of `ends`, nor are one of them.
pub(crate) fn loose(graph: usize, nodes: &[usize], ends: &[usize]) -> Vec<usize> {
    let mut all = lock(&GRAPHS);
    let Ok(own) = all.graph(graph) else {
        return Vec::new();
    };
    let (mut reached, mut next) = (BTreeSet::new(), ends.to_vec());
    while let Some(node) = next.pop() {
        if reached.insert(node) {
            next.extend(own.0.get(&node).into_iter().flat_map(|n| &n.before));
        }
    }
    let loose = nodes.iter().filter(|n| !reached.contains(n));
    loose.copied().collect()
}

/// Operations of a graph in an order in which each can run.
pub(crate) fn steps(graph: usize) -> std::result::Result<Vec<(usize, Operation)>, Result> {
    let mut all = lock(&GRAPHS);
    let nodes = all.graph(graph)?;
    let order = nodes.order().ok_or(INVALID_VALUE)?;
    let steps = order.iter().map(|h| (*h, nodes.0[h].operation.clone()));
    Ok(steps.collect())
}

/// A graph that can be launched, as its operations are now.
pub(crate) fn instantiate(graph: usize) -> std::result::Result<usize, Result> {
    let steps = steps(graph)?;
    let mut all = lock(&GRAPHS);
    let handle = all.fresh();
    let exec = Exec { steps, last: None };
    all.execs.insert(handle, Arc::new(Mutex::new(exec)));
    Ok(handle)
}

pub(crate) fn exec(handle: usize) -> std::result::Result<Arc<Mutex<Exec>>, Result> {
    let found = lock(&GRAPHS).execs.get(&handle).cloned();
    found.ok_or(INVALID_HANDLE)
}

/// Forgets a graph that can be launched. A replay that runs goes on to its end.
pub(crate) fn destroy_exec(handle: usize) -> std::result::Result<(), Result> {
    let removed = lock(&GRAPHS).execs.remove(&handle);
    removed.map(drop).ok_or(INVALID_VALUE)
}
