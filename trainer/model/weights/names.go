package weights

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// headName is the name of the output head in every architecture.
const headName = "lm_head.weight"

// embeddingName returns the name of the embedding.
func embeddingName(c arch.Config) string { return c.Body() + "embed_tokens.weight" }

// rename gives the tensors of a folder the names that the architecture has for them. It removes the prefix of a wrapper,
// splits fused tensors of experts, and renames routers and a tied head that is stored instead of the embedding.
func (o *opener) rename() error {
	expected := o.config.Layout().Tensors()
	if err := o.setAside(o.unwrap(expected)); err != nil {
		return err
	}
	useNames(o, expected)
	if err := o.split(expected); err != nil {
		return err
	}
	if err := o.tie(); err != nil {
		return err
	}
	head, stored := o.tensors[headName]
	if _, both := o.tensors[embeddingName(o.config)]; o.config.Tied && stored && !both {
		delete(o.tensors, headName)
		o.tensors[embeddingName(o.config)] = head
		o.notes = append(o.notes, fmt.Sprintf("%s is read as %s: the two are tied", headName, embeddingName(o.config)))
	}
	return nil
}

// unwrap finds the prefix that the names in the file have instead of Config.Body, such as module.model.
// (DistributedDataParallel), _orig_mod.model. (torch.compile) or language_model.model. (a language model in a vision
// model). It renames all tensors that begin with it. stored maps the new names of these tensors to their names in the file.
func (o *opener) unwrap(expected []arch.Tensor) (stored map[string]string) {
	want := o.config.Body()
	plain, inFile, note := withoutWrappers(o.tensors)
	if note != "" {
		o.tensors, o.notes = plain, append(o.notes, note)
	}
	first := slices.IndexFunc(expected, func(t arch.Tensor) bool { return strings.HasPrefix(t.Name, want+"layers.0.") && t.Fused.Name == "" })
	if first < 0 {
		return inFile
	}
	body, ok := prefixOf(o.tensors, strings.TrimPrefix(expected[first].Name, want), expected[first].Shape)
	if !ok {
		return inFile
	}
	head, _ := prefixOf(o.tensors, headName, []int64{int64(o.config.VocabSize), int64(o.config.Hidden)})
	renamed, stored := map[string]tensor{}, map[string]string{}
	for name, t := range o.tensors {
		to := name
		if rest, inside := strings.CutPrefix(name, body); inside && !inOtherPart(name) {
			to = want + rest
		}
		if name == head+headName {
			to = headName
		}
		if _, twice := renamed[to]; twice {
			return inFile
		}
		renamed[to], stored[to] = t, inFile[name]
	}
	o.tensors = renamed
	if body != want {
		o.wrapper = body
		o.notes = append(o.notes, fmt.Sprintf("names begin with %q instead of %q, and are read as if they began with the latter", body, want))
	}
	return stored
}

// leadingWrappers matches the wrappers of a whole model, and layerWrappers removes the wrappers of its layers.
var (
	leadingWrappers = regexp.MustCompile(`^((module|_orig_mod|_fsdp_wrapped_module)\.)*`)
	layerWrappers   = strings.NewReplacer("_orig_mod.", "", "_fsdp_wrapped_module.", "", "_checkpoint_wrapped_module.", "")
)

// withoutWrappers removes from names the modules with which torch.compile, FSDP and checkpointed activations wrap layers. It also returns
// the names in the file by the new ones. The note is "" if nothing is removed, for instance because two names differ only in a wrapper.
func withoutWrappers(tensors map[string]tensor) (plain map[string]tensor, inFile map[string]string, note string) {
	plain, inFile = map[string]tensor{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		leading := leadingWrappers.FindString(name)
		to := leading + layerWrappers.Replace(name[len(leading):])
		if to != name && note == "" {
			note = fmt.Sprintf("names contain wrappers of layers, and are read without them: %s is %s", name, to)
		}
		plain[to], inFile[to] = tensors[name], name
	}
	if len(plain) == len(tensors) {
		return plain, inFile, note
	}
	clear(inFile)
	for name := range tensors {
		inFile[name] = name
	}
	return tensors, inFile, ""
}

// prefixOf returns the part of a tensor's name in the file before the given ending. Exactly one tensor of the shape must
// have a name with this ending.
func prefixOf(tensors map[string]tensor, ending string, shape []int64) (prefix string, ok bool) {
	for name, t := range tensors {
		before, ends := strings.CutSuffix(name, ending)
		if !ends || inOtherPart(name) || before != "" && !strings.HasSuffix(before, ".") || !slices.Equal(t.shape, shape) {
			continue
		}
		if ok {
			return "", false
		}
		prefix, ok = before, true
	}
	return prefix, ok
}

// useNames gives tensors that have their other name in the file their usual name.
func useNames(o *opener, expected []arch.Tensor) {
	for _, want := range expected {
		t, stored := o.tensors[want.Other]
		if stored && !o.has(want.Name) {
			o.tensors[want.Name] = t
			delete(o.tensors, want.Other)
		}
	}
}

// split replaces each fused tensor of experts by the experts' own tensors.
func (o *opener) split(expected []arch.Tensor) error {
	fused := map[string]bool{}
	for _, want := range expected {
		name := want.Fused.Name
		all, ok := o.tensors[name]
		if name == "" || !ok {
			continue
		}
		fused[name] = true
		one, err := all.unfused(want)
		if err == nil {
			err = add(o, o.tensors, "fused experts", want.Name, one)
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", name, err)
		}
	}
	for name := range fused {
		delete(o.tensors, name)
	}
	return nil
}
