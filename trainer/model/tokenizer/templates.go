package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/jinja"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Names of chat templates. A chat with functions uses the second if it exists, as in transformers.
const (
	defaultTemplate = "default"
	toolTemplate    = "tool_use"
)

// templateFolder contains further templates, NAME.jinja, in addition to chat_template.jinja.
const templateFolder = "additional_chat_templates"

// maxTemplates is the largest number of templates of a tokenizer.
const maxTemplates = 64

// templates holds the sources of a tokenizer's chat templates by name.
type templates map[string]string

// readTemplateFiles adds chat_template.jinja and additional_chat_templates/ to the files of a folder.
func readTemplateFiles(fsys fs.FS, files map[string][]byte) error {
	list, err := fs.ReadDir(fsys, templateFolder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range list {
		name := path.Join(templateFolder, e.Name())
		if e.IsDir() || !isTemplateFile(name) {
			continue
		}
		if files[name], err = readFile(fsys, name); err != nil {
			return err
		}
	}
	return nil
}

func isTemplateFile(name string) bool {
	dir, file := path.Split(name)
	return dir == templateFolder+"/" && strings.HasSuffix(file, ".jinja") && file != ".jinja"
}

// readTemplates reads the templates of the tokenizer's files.
func (t *Tokenizer) readTemplates() error {
	config, err := readObject(t.files, fileConfig)
	if err != nil {
		return err
	}
	sources, err := templatesOf(t.files, config)
	if err != nil {
		return err
	}
	if err := foldTemplates(t.files, sources, config); err != nil {
		return err
	}
	return t.parseTemplates(sources)
}

// templatesOf returns the templates of files. They have priority over the templates of tokenizer_config.json, as in
// transformers, and these over the template of a processor.
func templatesOf(files map[string][]byte, config *ordered.Object) (templates, error) {
	found := templates{}
	for name, text := range files {
		switch {
		case name == fileTemplate:
			found[defaultTemplate] = string(text)
		case isTemplateFile(name):
			found[strings.TrimSuffix(path.Base(name), ".jinja")] = string(text)
		}
	}
	if len(found) == 0 {
		if err := found.read(config); err != nil {
			return nil, at(fileConfig, err)
		}
	}
	if len(found) == 0 { // a model for images may have the template only in its processor's file
		processor, err := readObject(files, fileProcessor)
		if err == nil {
			err = at(fileProcessor, found.read(processor))
		}
		if err != nil {
			return nil, err
		}
	}
	if len(found) > maxTemplates {
		return nil, fmt.Errorf("%d chat templates are more than %d", len(found), maxTemplates)
	}
	return found, nil
}

// read reads chat_template: a template, or a list of templates with names.
func (t templates) read(config *ordered.Object) error {
	v, _ := config.Get("chat_template")
	switch v := v.(type) {
	case nil:
	case string:
		t[defaultTemplate] = v
	case []any:
		for _, e := range v {
			named, _ := e.(*ordered.Object)
			key, isName := ordered.Value[string](named, "name")
			text, isText := ordered.Value[string](named, "template")
			if !isName || !isText {
				return errors.New("chat_template: want a list of objects with name and template")
			}
			t[key] = text
		}
	default:
		return fmt.Errorf("chat_template is of type %s", ordered.TypeName(v))
	}
	return nil
}

// parseTemplates parses the templates that a chat can use. Templates with other names can be chosen in transformers only.
// If there is a default template, an error in tool_use only affects chats with functions.
func (t *Tokenizer) parseTemplates(sources templates) (err error) {
	if source, ok := sources[defaultTemplate]; ok {
		if t.template, err = jinja.Parse(source); err != nil {
			return at("chat template", err)
		}
		t.printed = source
	}
	if source, ok := sources[toolTemplate]; ok {
		if t.withTools, t.toolsErr = jinja.Parse(source); t.toolsErr != nil && t.template == nil {
			return at("chat template "+toolTemplate, t.toolsErr)
		}
		t.printed += source
	}
	if len(sources) > 0 && t.template == nil && t.withTools == nil {
		return fmt.Errorf("chat template: there is no template named %s or %s: %s", defaultTemplate, toolTemplate, strings.Join(sources.names(), ", "))
	}
	return nil
}

// choose returns the template for a chat with or without functions.
func (t *Tokenizer) choose(tools bool) (*template, error) {
	switch {
	case tools && t.toolsErr != nil:
		return nil, at("chat template "+toolTemplate, t.toolsErr)
	case tools && t.withTools != nil:
		return t.withTools, nil
	case t.template == nil && t.withTools != nil:
		return nil, fmt.Errorf("chat template: the only one is %s, for chats with tools: add %s", toolTemplate, fileTemplate)
	case t.template == nil:
		return nil, ErrNoTemplate
	}
	return t.template, nil
}

// foldTemplates moves templates from additional_chat_templates/ into tokenizer_config.json, where transformers also finds
// them: a checkpoint does not contain folders.
func foldTemplates(files map[string][]byte, sources templates, config *ordered.Object) error {
	folded := false
	for name := range files {
		if isTemplateFile(name) {
			delete(files, name)
			folded = true
		}
	}
	if !folded {
		return nil
	}
	delete(files, fileTemplate)
	list := []any{}
	for _, name := range sources.names() {
		list = append(list, ordered.NewObject("name", name, "template", sources[name]))
	}
	whole := config.Clone()
	whole.Set("chat_template", list)
	indent := "  "
	text, err := ordered.Dumps(whole, ordered.Format{Indent: &indent})
	files[fileConfig] = []byte(text)
	return err
}

func (t templates) names() []string { return slices.Sorted(maps.Keys(t)) }
