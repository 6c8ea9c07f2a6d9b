// Package weights reads and writes files of model weights.
//
// Weights come in from Hugging Face folders (safetensors, single or sharded, or pytorch_model.bin) and
// from GGUF files, and go out as complete Hugging Face folders. Whatever the file format, a [Source]
// presents tensors under their Hugging Face names and widens any range of rows to float32 on demand.
//
// Every file is treated as hostile: sizes are bounded before anything is allocated, and an error names
// the file and the tensor or key at fault.
package weights
