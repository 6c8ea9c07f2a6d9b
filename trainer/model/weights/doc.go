// Package weights reads and writes files of model weights.
//
// It reads Hugging Face folders (safetensors, single or sharded, or pytorch_model.bin) and GGUF files, and writes complete
// Hugging Face folders. For every file format a [Source] lists the tensors under their Hugging Face names, and widens any
// range of rows to float32. Folders with quantization_config (FP8, mxfp4) are widened in the same way.
//
// Every file is treated as hostile: sizes are bounded before memory is allocated, and an error names the file and the
// tensor or key.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package weights
