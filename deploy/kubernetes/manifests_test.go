// Package kubernetes holds the manifests of a run on Kubernetes and their tests.
package kubernetes

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/show/health"
)

// manifests are the decoded objects of this folder by name. Unknown keys are errors.
type manifests struct {
	configs  map[string]*corev1.ConfigMap
	services map[string]*corev1.Service
	claims   map[string]*corev1.PersistentVolumeClaim
	sets     map[string]*appsv1.StatefulSet
	jobs     map[string]*batchv1.Job
	policies map[string]*networkingv1.NetworkPolicy
}

// read decodes every document that kustomization.yaml names, with the workers as kubectl kustomize
// makes them. It returns an error for unknown keys and for two objects with the same kind and name.
func read(t *testing.T) *manifests {
	t.Helper()
	return readAll(t, "redis.yaml", "team.yaml", "policy.yaml", filepath.Join("testdata", "workers.yaml"))
}

// teams returns the team without components and with each component.
func teams(t *testing.T) map[string]*manifests {
	t.Helper()
	return map[string]*manifests{"alone": read(t), "gpu": readAll(t, filepath.Join("testdata", "gpu.yaml"))}
}

func readAll(t *testing.T, files ...string) *manifests {
	t.Helper()
	m := &manifests{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, document := range bytes.Split(data, []byte("\n---\n")) {
			if err := m.add(document); err != nil {
				t.Errorf("%s, document %d: %v", file, i+1, err)
			}
		}
	}
	return m
}

func (m *manifests) add(document []byte) error {
	var is metav1.TypeMeta
	if err := yaml.Unmarshal(document, &is); err != nil {
		return err
	}
	switch kind := is.APIVersion + " " + is.Kind; kind {
	case "v1 ConfigMap":
		return into(&m.configs, document)
	case "v1 Service":
		return into(&m.services, document)
	case "v1 PersistentVolumeClaim":
		return into(&m.claims, document)
	case "apps/v1 StatefulSet":
		return into(&m.sets, document)
	case "batch/v1 Job":
		return into(&m.jobs, document)
	case "networking.k8s.io/v1 NetworkPolicy":
		return into(&m.policies, document)
	default:
		return fmt.Errorf("%q is a kind that this test cannot decode", kind)
	}
}

func into[T any, P interface {
	*T
	metav1.Object
}](all *map[string]P, document []byte) error {
	v := P(new(T))
	if err := yaml.UnmarshalStrict(document, v); err != nil {
		return err
	}
	if _, twice := (*all)[v.GetName()]; twice || v.GetName() == "" {
		return fmt.Errorf("the name %q is empty or used twice", v.GetName())
	}
	if *all == nil {
		*all = map[string]P{}
	}
	(*all)[v.GetName()] = v
	return nil
}

// templates returns the pods of all workloads by the workload's name.
func (m *manifests) templates() map[string]*corev1.PodTemplateSpec {
	out := map[string]*corev1.PodTemplateSpec{}
	for name, s := range m.sets {
		out[name] = &s.Spec.Template
	}
	for name, j := range m.jobs {
		out[name] = &j.Spec.Template
	}
	return out
}

// team returns the configuration in the ConfigMap, after the checks that the program makes.
func (m *manifests) team(t *testing.T) *config.Config {
	t.Helper()
	c := m.configs["mgrpo-team"]
	if c == nil || len(c.Data) != 1 {
		t.Fatal("the ConfigMap mgrpo-team must have exactly one file")
	}
	cfg, err := config.Parse("/etc/mgrpo/team.yaml", []byte(c.Data["team.yaml"]), nil)
	if err != nil {
		t.Fatalf("the embedded configuration: %v", err)
	}
	return cfg
}

// Every pod runs with restricted privileges, and the volumes that it mounts exist.
func TestPods(t *testing.T) {
	for team, m := range teams(t) {
		if want := map[string]int{"alone": 3, "gpu": 4}[team]; len(m.templates()) != want {
			t.Errorf("%s: %d workloads, want %d", team, len(m.templates()), want)
		}
		for name, pod := range m.templates() {
			t.Run(team+"/"+name, func(t *testing.T) {
				p := pod.Spec
				sc := p.SecurityContext
				if sc == nil || sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot || sc.RunAsUser == nil || *sc.RunAsUser == 0 || sc.FSGroup == nil || sc.SeccompProfile == nil {
					t.Errorf("its security context is %+v", sc)
				}
				if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
					t.Error("the pod gets a token for the cluster's API")
				}
				volumes := m.volumes(t, name, p)
				unused := maps.Clone(volumes)
				for _, c := range slices.Concat(p.InitContainers, p.Containers) {
					checkConfined(t, c)
					for _, mount := range c.VolumeMounts {
						if !volumes[mount.Name] {
							t.Errorf("the pod has no volume %s", mount.Name)
						}
						delete(unused, mount.Name)
					}
				}
				for _, c := range p.Containers {
					if c.LivenessProbe == nil || c.ReadinessProbe == nil {
						t.Errorf("the container %s has no probes", c.Name)
					}
				}
				if len(unused) > 0 {
					t.Errorf("volumes that no container mounts: %v", unused)
				}
			})
		}
	}
}

func checkConfined(t *testing.T, c corev1.Container) {
	t.Helper()
	sc := c.SecurityContext
	if sc == nil || sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation || sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem ||
		sc.Capabilities == nil || !slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("the security context of the container %s is %+v", c.Name, sc)
	}
	if c.Resources.Limits.Memory().IsZero() {
		t.Errorf("the container %s has no memory limit", c.Name)
	}
}

// volumes returns a pod's volumes and checks that their sources exist. Secrets are checked in
// cmd/mgrpo, because the commands that create them can run there.
func (m *manifests) volumes(t *testing.T, workload string, p corev1.PodSpec) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, v := range p.Volumes {
		out[v.Name] = true
		switch {
		case v.ConfigMap != nil && m.configs[v.ConfigMap.Name] == nil:
			t.Errorf("there is no ConfigMap %s", v.ConfigMap.Name)
		case v.PersistentVolumeClaim != nil && m.claims[v.PersistentVolumeClaim.ClaimName] == nil:
			t.Errorf("there is no PersistentVolumeClaim %s", v.PersistentVolumeClaim.ClaimName)
		case v.ConfigMap == nil && v.PersistentVolumeClaim == nil && v.Secret == nil && v.EmptyDir == nil:
			t.Errorf("the volume %s has a source that this test cannot check", v.Name)
		}
	}
	if s := m.sets[workload]; s != nil {
		for _, claim := range s.Spec.VolumeClaimTemplates {
			out[claim.Name] = true
		}
	}
	return out
}

// mount returns the path at which a container mounts the volume that `is` selects.
func mount(p corev1.PodSpec, is func(corev1.Volume) bool) string {
	for _, v := range p.Volumes {
		if !is(v) {
			continue
		}
		for _, mount := range p.Containers[0].VolumeMounts {
			if mount.Name == v.Name {
				return mount.MountPath
			}
		}
	}
	return ""
}

// Every selector matches a pod, and the ports that a Service names exist in these pods.
func TestSelectors(t *testing.T) {
	for name, m := range teams(t) {
		t.Run(name, func(t *testing.T) { m.selectors(t) })
	}
}

// selected returns the workloads that a selector matches.
func (m *manifests) selected(t *testing.T, what string, selector map[string]string) map[string]*corev1.PodTemplateSpec {
	t.Helper()
	out := map[string]*corev1.PodTemplateSpec{}
	for name, pod := range m.templates() {
		if labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
			out[name] = pod
		}
	}
	if len(out) == 0 || len(selector) == 0 {
		t.Errorf("%s selects no pod: %v", what, selector)
	}
	return out
}

func hasPort(t *testing.T, what string, pods map[string]*corev1.PodTemplateSpec, port intstr.IntOrString) {
	t.Helper()
	for _, pod := range pods {
		if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
				return port.Type == intstr.String && p.Name == port.StrVal || port.Type == intstr.Int && p.ContainerPort == port.IntVal
			})
		}) {
			t.Errorf("%s: its pod has no port %s", what, port.String())
		}
	}
}

func (m *manifests) selectors(t *testing.T) {
	for name, s := range m.services {
		pods := m.selected(t, "Service "+name, s.Spec.Selector)
		for _, p := range s.Spec.Ports {
			target := p.TargetPort
			if target == (intstr.IntOrString{}) {
				target = intstr.FromInt32(p.Port)
			}
			hasPort(t, "Service "+name, pods, target)
		}
	}
	for name, s := range m.sets {
		if m.services[s.Spec.ServiceName] == nil {
			t.Errorf("StatefulSet %s: there is no Service %s", name, s.Spec.ServiceName)
		}
		selector, err := metav1.LabelSelectorAsSelector(s.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(s.Spec.Template.Labels)) {
			t.Errorf("StatefulSet %s does not select its own pods: %v", name, err)
		}
	}
	closed := map[networkingv1.PolicyType]map[string]bool{networkingv1.PolicyTypeIngress: {}, networkingv1.PolicyTypeEgress: {}}
	for name, n := range m.policies {
		pods := m.selected(t, "NetworkPolicy "+name, n.Spec.PodSelector.MatchLabels)
		for _, direction := range n.Spec.PolicyTypes {
			for pod := range pods {
				closed[direction][pod] = true
			}
		}
		m.checkPolicy(t, name, n, pods)
	}
	for direction, pods := range closed {
		if len(pods) != len(m.templates()) {
			t.Errorf("%s: network policies select %d of %d workloads", direction, len(pods), len(m.templates()))
		}
	}
}

func (m *manifests) checkPolicy(t *testing.T, name string, n *networkingv1.NetworkPolicy, pods map[string]*corev1.PodTemplateSpec) {
	t.Helper()
	for _, rule := range n.Spec.Ingress {
		if len(rule.From) == 0 || len(rule.Ports) == 0 {
			t.Errorf("NetworkPolicy %s allows traffic from anywhere", name)
		}
		for _, from := range rule.From {
			if from.PodSelector != nil {
				m.selected(t, "ingress of "+name, from.PodSelector.MatchLabels)
			}
		}
		for _, p := range rule.Ports {
			hasPort(t, "NetworkPolicy "+name, pods, *p.Port)
		}
	}
	for _, rule := range n.Spec.Egress {
		for _, to := range rule.To {
			if to.PodSelector == nil {
				continue
			}
			for _, p := range rule.Ports {
				hasPort(t, "NetworkPolicy "+name, m.selected(t, "egress of "+name, to.PodSelector.MatchLabels), *p.Port)
			}
		}
	}
}

// Redis stores every write, refuses clients without the password, and has the address that the workers use.
func TestRedis(t *testing.T) {
	m := read(t)
	set := m.sets["mgrpo-redis"]
	if set == nil || *set.Spec.Replicas != 1 {
		t.Fatal("there must be exactly one Redis")
	}
	p := set.Spec.Template.Spec
	conf := map[string]string{}
	for line := range strings.Lines(m.configs["mgrpo-redis"].Data["redis.conf"]) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key != "#" {
			conf[key] = value
		}
	}
	for key, want := range map[string]string{"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction",
		"aclfile": path.Join(mount(p, func(v corev1.Volume) bool { return v.Secret != nil }), "users.acl")} {
		if conf[key] != want {
			t.Errorf("redis.conf: %s is %q, want %q", key, conf[key], want)
		}
	}
	c := p.Containers[0]
	if want := path.Join(mount(p, func(v corev1.Volume) bool { return v.ConfigMap != nil }), "redis.conf"); !slices.Equal(c.Command, []string{"redis-server", want}) {
		t.Errorf("it runs %v, but its configuration is at %s", c.Command, want)
	}
	if !slices.ContainsFunc(c.VolumeMounts, func(v corev1.VolumeMount) bool { return v.Name == "data" && v.MountPath == conf["dir"] && !v.ReadOnly }) {
		t.Errorf("its data is in %s, which is not on the volume", conf["dir"])
	}
	gigabytes, err := strconv.ParseInt(strings.TrimSuffix(conf["maxmemory"], "gb"), 10, 64)
	if limit := c.Resources.Limits.Memory().Value(); err != nil || gigabytes<<30 >= limit {
		t.Errorf("maxmemory %s does not stay below the limit of %d bytes (%v)", conf["maxmemory"], limit, err)
	}
	u, err := url.Parse(m.team(t).Store.URL)
	if err != nil {
		t.Fatal(err)
	}
	service := m.services[u.Hostname()]
	if service == nil {
		t.Fatalf("store.url names %s, but there is no such Service", u.Hostname())
	}
	if port := fmt.Sprint(service.Spec.Ports[0].Port); port != u.Port() || port != conf["port"] || port != fmt.Sprint(c.Ports[0].ContainerPort) {
		t.Errorf("the port is %s in store.url, %s in the Service, %s in redis.conf, %d in the pod", u.Port(), port, conf["port"], c.Ports[0].ContainerPort)
	}
}

// Every agent has a worker that can read its configuration, its password and its folder. Its
// probes ask at the address where it serves its health.
func TestWorkers(t *testing.T) {
	m := read(t)
	cfg := m.team(t)
	if len(m.jobs) != len(cfg.Agents) {
		t.Errorf("jobs %v for %d agents", slices.Sorted(maps.Keys(m.jobs)), len(cfg.Agents))
	}
	for i := range cfg.Agents {
		a := &cfg.Agents[i]
		t.Run(a.Name, func(t *testing.T) {
			job := m.jobs["mgrpo-"+a.Name]
			if job == nil {
				t.Fatal("the agent has no job")
			}
			p := job.Spec.Template.Spec
			c := p.Containers[0]
			checkArguments(t, cfg, a.Name, p)
			checkEnvironment(t, cfg, a.Name, c)
			checkHealth(t, cfg, c)
			var want int64
			if a.Device != "cpu" {
				want = int64(len(a.Ranks()))
			}
			if gpus := c.Resources.Limits["nvidia.com/gpu"]; gpus.Value() != want {
				t.Errorf("its devices are %v, but it requests %v GPUs", a.Ranks(), gpus.Value())
			}
			if p.RestartPolicy != corev1.RestartPolicyNever || p.TerminationGracePeriodSeconds == nil || *p.TerminationGracePeriodSeconds < 600 {
				t.Errorf("restart policy %s, grace period %v; a checkpoint needs more time", p.RestartPolicy, p.TerminationGracePeriodSeconds)
			}
			for _, rule := range job.Spec.PodFailurePolicy.Rules {
				if rule.OnExitCodes != nil && *rule.OnExitCodes.ContainerName != c.Name {
					t.Errorf("a rule names the container %s", *rule.OnExitCodes.ContainerName)
				}
			}
		})
	}
}

// An agent on several machines differs from one on a single machine only in the settings that connect its machines.
func TestMachines(t *testing.T) {
	all, further := read(t), readAll(t, filepath.Join("machines", "planner.yaml"))
	alone, job := all.jobs["mgrpo-planner"], further.jobs["mgrpo-planner"]
	if alone == nil || job == nil {
		t.Fatal("the planner does not have two jobs")
	}
	p := &job.Spec.Template.Spec
	c := &p.Containers[0]
	var sets, rest []string
	for _, arg := range c.Args {
		if set, ok := strings.CutPrefix(arg, "--set=agents.planner.machines."); ok {
			sets = append(sets, "agents.planner.machines."+set)
		} else if arg != "--machine=$(MGRPO_MACHINE)" {
			rest = append(rest, arg)
		}
	}
	cfg, err := config.Parse("/etc/mgrpo/team.yaml", []byte(all.configs["mgrpo-team"].Data["team.yaml"]), sets)
	if err != nil {
		t.Fatal(err)
	}
	a := cfg.Agent("planner").Machines
	host, port, _ := strings.Cut(a.Address, ":")
	service := further.services[p.Subdomain]
	if service == nil || service.Spec.ClusterIP != corev1.ClusterIPNone || !service.Spec.PublishNotReadyAddresses || fmt.Sprint(service.Spec.Ports[0].Port) != port ||
		!labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(job.Spec.Template.Labels)) || host != job.Name+"-0."+p.Subdomain {
		t.Errorf("the address %s does not match %+v", a.Address, service)
	}
	if s := job.Spec; s.CompletionMode == nil || *s.CompletionMode != batchv1.IndexedCompletion || int(*s.Completions) != a.Count || int(*s.Parallelism) != a.Count || a.Count < 2 {
		t.Errorf("%d machines, but completions %v and parallelism %v", a.Count, *s.Completions, *s.Parallelism)
	}
	if env := c.Env[len(c.Env)-2:]; env[0].Name != a.KeyEnv || env[0].ValueFrom.SecretKeyRef.Name != "mgrpo-machines" || env[1].Name != "MGRPO_MACHINE" ||
		env[1].ValueFrom.FieldRef.FieldPath != "metadata.annotations['"+batchv1.JobCompletionIndexAnnotation+"']" {
		t.Errorf("its environment ends with %+v", env)
	}
	if modes := further.claims["mgrpo-planner"].Spec.AccessModes; !slices.Equal(modes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}) {
		t.Errorf("its volume is %v", modes)
	}
	policy := further.policies["mgrpo-planner"].Spec
	for _, peers := range [][]networkingv1.NetworkPolicyPeer{policy.Ingress[0].From, policy.Egress[0].To} {
		if len(peers) != 1 || !maps.Equal(peers[0].PodSelector.MatchLabels, policy.PodSelector.MatchLabels) || !labels.SelectorFromSet(policy.PodSelector.MatchLabels).Matches(labels.Set(job.Spec.Template.Labels)) {
			t.Errorf("network policy of its pods: %+v", peers)
		}
	}
	// Without these settings it must equal the job of one machine.
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		probe.Exec.Command[2] = strings.TrimPrefix(probe.Exec.Command[2], `[ "$MGRPO_MACHINE" != 0 ] || `)
	}
	if s := job.Spec.SuccessPolicy; s == nil || len(s.Rules) != 1 || *s.Rules[0].SucceededIndexes != "0" {
		t.Errorf("the Job must succeed when pod 0, the worker, succeeds: %+v", s)
	}
	job.Spec.CompletionMode, job.Spec.Completions, job.Spec.Parallelism, job.Spec.SuccessPolicy, p.Subdomain = nil, nil, nil, nil, ""
	c.Args, c.Env, c.Ports = rest, c.Env[:len(c.Env)-2], c.Ports[:1]
	if d := cmp.Diff(alone, job); d != "" {
		t.Errorf("apart from these settings it differs from agents/planner (-there +here):\n%s", d)
	}
}

func checkArguments(t *testing.T, cfg *config.Config, agent string, p corev1.PodSpec) {
	t.Helper()
	file := path.Join(mount(p, func(v corev1.Volume) bool { return v.ConfigMap != nil && v.ConfigMap.Name == "mgrpo-team" }), "team.yaml")
	for _, want := range []string{"worker", file, "--agent=" + agent, "--resume", "--set=store.username=" + cfg.Run.Name + "-" + agent} {
		if !slices.Contains(p.Containers[0].Args, want) {
			t.Errorf("its arguments %q lack %s", p.Containers[0].Args, want)
		}
	}
	claim := mount(p, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == "mgrpo-"+agent
	})
	if dir := cfg.Resolve(cfg.Run.Dir); claim == "" || !strings.HasPrefix(dir, claim+"/") {
		t.Errorf("run.dir %s is not on its volume, %q", dir, claim)
	}
}

func checkEnvironment(t *testing.T, cfg *config.Config, agent string, c corev1.Container) {
	t.Helper()
	got := map[string]string{}
	for _, e := range c.Env {
		if e.Value != "" || e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil {
			t.Errorf("%s does not come from a Secret", e.Name)
			continue
		}
		got[e.Name] = e.ValueFrom.SecretKeyRef.Name + " " + e.ValueFrom.SecretKeyRef.Key
	}
	want := map[string]string{cfg.Store.PasswordEnv: "mgrpo-store-" + agent + " password", cfg.Health.TokenEnv: "mgrpo-health token"}
	if !maps.Equal(got, want) {
		t.Errorf("its environment is %v, want %v", got, want)
	}
}

func checkHealth(t *testing.T, cfg *config.Config, c corev1.Container) {
	t.Helper()
	_, port, ok := strings.Cut(cfg.Health.Address, ":")
	if !ok || len(c.Ports) != 1 || fmt.Sprint(c.Ports[0].ContainerPort) != port {
		t.Errorf("its ports are %+v, health.address %s", c.Ports, cfg.Health.Address)
	}
	for path, probe := range map[string]*corev1.Probe{health.AlivePath: c.LivenessProbe, health.ReadyPath: c.ReadinessProbe} {
		if probe.Exec == nil {
			t.Errorf("the probe of %s must run a command, because a plain HTTP probe has no token", path)
			continue
		}
		want := regexp.MustCompile(`^curl -fsS -m (\d+) -H "Authorization: Bearer \$` + cfg.Health.TokenEnv + `" http://127\.0\.0\.1:` + port + path + `$`)
		found := want.FindStringSubmatch(probe.Exec.Command[len(probe.Exec.Command)-1])
		if len(probe.Exec.Command) != 3 || found == nil {
			t.Errorf("the probe of %s runs %q", path, probe.Exec.Command)
			continue
		}
		if seconds, _ := strconv.Atoi(found[1]); int32(seconds) >= probe.TimeoutSeconds {
			t.Errorf("the probe of %s takes up to %d s, but its time-out is %d s", path, seconds, probe.TimeoutSeconds)
		}
	}
}
