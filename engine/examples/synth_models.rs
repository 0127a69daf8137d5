//! Writes the synthetic models that speed is compared on: noise in the shape of a 1B llama, in the types of the comparison.
//! The argument is the folder; files that are there already are kept.

use farmgate_engine::synth::{Shape, write};
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("name a folder")?;
    std::fs::create_dir_all(&folder)?;
    let shape = Shape::parse("llama-1b")?;
    for (quant, name) in [("q4_0", "Q4_0"), ("q4_k_m", "Q4_K_M"), ("q8_0", "Q8_0")] {
        let path = folder.join(format!("synth-1B-{name}.gguf"));
        if !path.exists() {
            let part = path.with_extension("part");
            write(&shape, quant, 1, &part)?;
            std::fs::rename(part, path)?;
        }
    }
    Ok(())
}
