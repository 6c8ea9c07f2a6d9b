package weights

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"strings"
)

// Form is the layout of a folder that contains more than the tensors of a language model: their names, and
// other parts such as a vision tower. Checkpoints of the model are written in the same layout. The folder's files stay
// mapped as long as the Form is in use, even if the folder is removed.
type Form struct {
	names  map[string]string // names of tensors in the folder, by their names in arch.Layout; only names that differ
	others map[string]other  // by their names in the folder
	head   string            // name in the folder of a head that is tied to the embedding but also stored; "": it is not stored
	files  map[string][]byte // files of processors for images and sound
}

// other is a tensor of a part that does not belong to the language model.
type other struct {
	tensor      // if the part is quantised, it is widened to BF16, like the language model
	unread bool // see arch.Config.Unread
}

// parts lists modules outside the language model whose tensors a folder may contain.
var parts = []string{"mtp", "visual", "vision_tower", "vision_model", "vision_encoder", "vision_embedder", "multi_modal_projector", "mm_projector",
	"connector", "audio_tower", "audio_model", "audio_encoder", "embed_vision", "embed_audio", "image_newline"}

// part returns the module to which a tensor outside the language model belongs.
func part(name string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, "model."), ".")
	return first
}

// inOtherPart reports whether a tensor belongs to a part outside the language model.
func inOtherPart(name string) bool { return slices.Contains(parts, part(name)) }

// processorFiles describe how images, video and sound become inputs.
var processorFiles = []string{"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"}

// setAside moves the tensors of other parts out of the list. stored holds the names in the file of renamed tensors.
func (o *opener) setAside(stored map[string]string) error {
	form := &Form{names: map[string]string{}, others: map[string]other{}, files: map[string][]byte{}}
	for name, t := range o.others {
		form.others[name] = other{tensor: t}
	}
	for name, t := range o.tensors {
		file := name
		if was, renamed := stored[name]; renamed {
			file = was
		}
		outside := o.config.Wrapper != "" && !strings.HasPrefix(name, o.config.Body()) && name != headName
		unread := o.config.Unread(name)
		if !inOtherPart(file) && !outside && !unread {
			form.names[name] = file
			continue
		}
		form.others[file] = other{t, unread}
		delete(o.tensors, name)
	}
	if o.config.Wrapper == "" && len(form.others) == 0 {
		return nil
	}
	o.form = form
	o.notes = append(o.notes, form.notes()...)
	return form.readProcessors(o.path)
}

// notes describes the parts that are not trained, with their numbers of tensors.
func (f *Form) notes() (notes []string) {
	count, unread := map[string]int{}, 0
	for name, one := range f.others {
		if one.unread {
			unread++
		} else {
			count[part(name)]++
		}
	}
	if unread > 0 {
		notes = append(notes, fmt.Sprintf("%d tensors of layers that attend to the keys and values of others are not read, and are saved unchanged", unread))
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		list = append(list, fmt.Sprintf("%s (%d tensors)", name, count[name]))
	}
	if len(list) > 0 {
		notes = append(notes, "parts other than the language model are not trained, and are saved unchanged: "+strings.Join(list, ", "))
	}
	return notes
}

func (f *Form) readProcessors(folder string) error {
	for _, name := range processorFiles {
		data, err := readJSON(folder, name, maxConfigBytes)
		if err == nil {
			f.files[name] = data
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// tie records the names of the embedding and of a head that is tied to it. If the two differ in a wrapped model, they are
// read as untied, as transformers does.
func (o *opener) tie() error {
	_, head := o.tensors[headName]
	_, embedding := o.tensors[embeddingName(o.config)]
	if o.form == nil || !o.config.Tied || !head {
		return nil
	}
	if !embedding {
		o.form.names[embeddingName(o.config)] = o.form.names[headName]
		return nil
	}
	same, err := sameValues(o.tensors, headName, embeddingName(o.config))
	if err != nil {
		return err
	}
	if same {
		o.form.head = o.form.names[headName]
	} else if o.config.Wrapper != "" {
		o.config.Tied = false
		o.notes = append(o.notes, headName+" differs from the embedding: the two are not tied")
	}
	return nil
}

// Form returns the layout of the folder. It is nil if the folder has only a language model, or after Alone.
func (s *Source) Form() *Form { return s.form }

// Alone detaches the language model from the other parts: checkpoints then contain only the language model. Call it before Form.
func (s *Source) Alone() error {
	text, err := s.config.Text()
	if err != nil {
		return err
	}
	before := s.config.Body()
	s.config, s.form = text, nil
	renamed := map[string]tensor{}
	for name, t := range s.tensors {
		if rest, inside := strings.CutPrefix(name, before); inside {
			name = text.Body() + rest
		}
		renamed[name] = t
	}
	s.tensors, s.names = renamed, slices.Sorted(maps.Keys(renamed))
	return nil
}

// arrange gives the language model's tensors their names in the folder, adds the tensors of other parts, and sorts by name.
func (f *Form) arrange(text []OutTensor, embedding string) []OutTensor {
	var all []OutTensor
	for _, t := range text {
		if t.Name == embedding && f.head != "" {
			again := t
			again.Name = f.head
			all = append(all, again)
		}
		if name, ok := f.names[t.Name]; ok {
			t.Name = name
		}
		all = append(all, t)
	}
	for name, one := range f.others {
		all = append(all, one.out(name))
	}
	slices.SortFunc(all, byName)
	return all
}

func (o other) out(name string) OutTensor {
	if o.scales == nil {
		return OutTensor{name, string(o.dtype), o.shape, int64(len(o.data)), func(w io.Writer) error {
			return guardMapped(func() error { _, err := w.Write(o.data); return err })
		}}
	}
	n, _ := numel(o.shape)
	return OutTensor{name, string(BF16), o.shape, n * BF16.Size(), func(w io.Writer) error {
		values := make([]float32, n)
		count, _ := rows(o.shape)
		if err := guardMapped(func() error { return o.read(0, count, values) }); err != nil {
			return err
		}
		return WriteFloats(w, BF16, values)
	}}
}

// keepMapped leaves the mapped files to the garbage collector, which unmaps them once the Form is unreachable.
func (f *Form) keepMapped(files []*mapping) {
	runtime.AddCleanup(f, func(files []*mapping) {
		for _, m := range files {
			m.close()
		}
	}, files)
}
