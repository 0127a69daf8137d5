//! farmgate: may this release go out to these devices?
//!
//! The order of the modules is the layering: a module may use only the modules listed above it.

// words
pub mod error;
pub mod label;
pub mod metric;
pub mod run;
pub mod target;

// judgement: pure, no I/O, no clock; the gate stands on the statistics
pub mod stats;

pub mod gate;

// intent: what users edit, and the models they bring
pub mod config;
pub mod device;
pub mod model;
pub mod scenario;

// what is demanded, and everything that will be done
pub mod plan;
pub mod policy;

// what is said of a run while it happens
pub mod event;

// reach; each of these groups may use those above it
pub mod process;

pub mod transport;

pub mod agent;
pub mod lease;
pub mod push;
pub mod toolchain;

pub mod session;

// act
pub mod runner;

// remember
pub mod quarantine;
pub mod store;

// tell
pub mod report;

// ask
pub mod cli;
pub mod command;
