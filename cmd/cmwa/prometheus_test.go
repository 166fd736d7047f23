package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/cloud/server/servertest"
)

// prometheusVariable is the variable with the path of a Prometheus server.
const prometheusVariable = "CMWA_TEST_PROMETHEUS"

const (
	alertsFile    = chartDirectory + "/prometheus/alerts.yaml"
	dashboardFile = chartDirectory + "/prometheus/dashboard.json"
	alertTests    = "testdata/prometheus/alerts_test.yaml"
)

// TestPrometheusAlerts runs the unit tests of the alerts. Each alert must have a case that fires, one that does not,
// and a row in the document that its annotation names.
func TestPrometheusAlerts(t *testing.T) {
	t.Parallel()
	must(t, promtoolVariable, "check", "rules", alertsFile)
	must(t, promtoolVariable, "test", "rules", alertTests)

	var file struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	noError(t, yaml.Unmarshal([]byte(readText(t, alertsFile)), &file))
	var cases struct {
		Tests []struct {
			Rules []struct {
				Alert string `yaml:"alertname"`
				Fires []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	noError(t, yaml.Unmarshal([]byte(readText(t, alertTests)), &cases))
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, test := range cases.Tests {
		for _, rule := range test.Rules {
			fires[rule.Alert] = fires[rule.Alert] || len(rule.Fires) > 0
			rests[rule.Alert] = rests[rule.Alert] || len(rule.Fires) == 0
		}
	}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if !fires[rule.Alert] || !rests[rule.Alert] {
				t.Errorf("%s has no case for %s that fires, or none that does not", alertTests, rule.Alert)
			}
			if !strings.Contains(readText(t, "events.md"), "\n| "+rule.Alert+" | ") {
				t.Errorf("events.md has no row for %s", rule.Alert)
			}
		}
	}
	if len(fires) < 7 {
		t.Errorf("%s has cases for %d alerts, want all", alertTests, len(fires))
	}
}

// dashboard is the part of a dashboard of Grafana that contains queries.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
}

// queries returns the queries by a name for messages. Each variable of the dashboard has all values.
func (d dashboard) queries(t *testing.T) map[string]string {
	t.Helper()
	all, values := map[string]string{}, []string{"$__rate_interval", "1m"}
	for _, variable := range d.Templating.List {
		values = append(values, "$"+variable.Name, ".*")
		if variable.Type != "query" {
			continue
		}
		found := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(variable.Query)
		if found == nil {
			t.Fatalf("the query of the variable %s is %s", variable.Name, variable.Query)
		}
		all["variable "+variable.Name] = fmt.Sprintf("count by (%s) (%s)", found[2], found[1])
	}
	for _, panel := range d.Panels {
		for i, target := range panel.Targets {
			all[fmt.Sprintf("%s, query %d", panel.Title, i+1)] = strings.NewReplacer(values...).Replace(target.Expr)
		}
	}
	return all
}

// TestPrometheusDashboard runs the queries of the dashboard on a Prometheus that scrapes an agent and a service. One
// pool of the agent runs processes, and the cluster of the other does not respond.
func TestPrometheusDashboard(t *testing.T) {
	t.Parallel()
	prometheus := tool(t, prometheusVariable)
	w := newWorld(t, "process")
	kubeconfig := filepath.Join(w.directory, "kubeconfig")
	w.must(os.WriteFile(kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: down,
clusters: [{name: down, cluster: {server: "http://127.0.0.1:%d"}}], users: [{name: me, user: {}}],
contexts: [{name: down, context: {cluster: down, user: me}}]}`, freePort(t)), 0o600))
	agent := agentPort(freePort(t))
	w.agentWith([]string{"KUBECONFIG=" + kubeconfig}, agent.setting(), fmt.Sprintf(
		"pools: [{name: processes}, {name: pods, deploy_target: kubernetes, token: %s}]", w.pools(1)[0].token))
	w.runShort("good", w.poolID)

	// Start Prometheus, which also loads the alerts.
	alerts, err := filepath.Abs(alertsFile)
	w.must(err)
	service := agentPort(freePort(t))
	w.start("other-service", []string{"METRICS_WEBHOOK_SECRET=scrape"}, "cmwa-cloud", "serve",
		"--listen", fmt.Sprintf("127.0.0.1:%d", service), "--data", servertest.DataDirectory(t))
	config, server := filepath.Join(w.directory, "prometheus.yaml"), agentPort(freePort(t))
	w.must(os.WriteFile(config, fmt.Appendf(nil, `global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - {job_name: cmwa, static_configs: [{targets: ["127.0.0.1:%d"]}]}
  - job_name: cmwa-cloud
    static_configs: [{targets: ["127.0.0.1:%d"]}]
    authorization: {type: webhook-token, credentials: scrape}
`, alerts, agent, service), 0o600))
	w.start("prometheus", nil, prometheus, "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(w.directory, "tsdb"),
		fmt.Sprintf("--web.listen-address=127.0.0.1:%d", server))
	query := func(expression string) (series int) {
		var answer struct {
			Status, Error string
			Data          struct{ Result []any }
		}
		body := bodyOf(server.url("/api/v1/query?query=" + url.QueryEscape(expression)))
		_ = json.Unmarshal(body, &answer) // Prometheus may not serve yet
		if answer.Status == "error" {
			t.Fatalf("%s: %s", expression, answer.Error)
		}
		return len(answer.Data.Result)
	}

	// 1. Each query of the dashboard has a result.
	var d dashboard
	noError(t, json.Unmarshal([]byte(readText(t, dashboardFile)), &d))
	all := d.queries(t)
	if len(all) < 20 {
		t.Errorf("the dashboard has only %d queries", len(all))
	}
	for name, expression := range all {
		if strings.Contains(expression, "$") {
			t.Errorf("%s has an unknown variable: %s", name, expression)
		}
		if strings.Contains(expression, "cmwa_pool_token_expiry") { // the pools have static tokens
			query(expression)
			continue
		}
		w.eventually("result of "+name+": "+expression, func() bool { return query(expression) > 0 })
	}

	// 2. The metrics of the alerts exist, and the pool without a cluster makes one pending.
	w.eventually("pending alert", func() bool {
		return query(`ALERTS{alertname="CmwaPoolFailing", alertstate="pending", pool="pods"}`) == 1
	})
	for _, name := range regexp.MustCompile(`\bcmwa_\w+({\S+})?`).FindAllString(readText(t, alertsFile), -1) {
		if name != "cmwa_pool_token_expiry_timestamp_seconds" {
			w.eventually("metric "+name, func() bool { return query(name) > 0 })
		}
	}
	checkMetrics(t, string(bodyOf(agent.url("/metrics"))))
}

// TestPrometheusChart checks that the chart installs the alerts and the dashboard as they are in the files.
func TestPrometheusChart(t *testing.T) {
	t.Parallel()
	manifests, message, err := render(t, "--set", "agent.token=pul-1",
		"--set", "prometheusRule.enabled=true,prometheusRule.labels.release=prometheus",
		"--set", "dashboard.enabled=true,dashboard.annotations.place=CI")
	if err != nil {
		t.Fatal(message)
	}
	type object struct {
		Kind     string
		Metadata struct{ Labels, Annotations map[string]string }
		Spec     any
		Data     map[string]string
	}
	objects := map[string]object{}
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var o object
		noError(t, yaml.Unmarshal([]byte(document), &o))
		if o.Data["cmwa.json"] != "" || o.Kind == "PrometheusRule" {
			objects[o.Kind] = o
		}
	}
	var alerts any
	noError(t, yaml.Unmarshal([]byte(readText(t, alertsFile)), &alerts))
	rule := objects["PrometheusRule"]
	if !reflect.DeepEqual(rule.Spec, alerts) || rule.Metadata.Labels["release"] != "prometheus" {
		t.Errorf("the PrometheusRule is %+v", rule)
	}
	dashboard := objects["ConfigMap"]
	if strings.TrimSpace(dashboard.Data["cmwa.json"]) != strings.TrimSpace(readText(t, dashboardFile)) ||
		dashboard.Metadata.Labels["grafana_dashboard"] != "1" ||
		dashboard.Metadata.Annotations["place"] != "CI" {
		t.Errorf("the ConfigMap is %+v", dashboard)
	}
}
