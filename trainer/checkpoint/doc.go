// Package checkpoint moves model weights and run state between files and the trainer.
//
// Weights come in from Hugging Face folders (safetensors, single or sharded, or pytorch_model.bin) and
// from GGUF files, and go out as complete Hugging Face folders. Whatever the file format, a [Source]
// presents tensors under their Hugging Face names and widens any range of rows to float32 on demand.
//
// Run state is a folder a step (see [Run]): one Hugging Face folder, optimizer file and state file an
// agent, and a manifest with the digest of every file, whose appearance makes the step complete.
//
// Every file is treated as hostile: sizes are bounded before anything is allocated, and an error names
// the file and the tensor or key at fault.
package checkpoint
