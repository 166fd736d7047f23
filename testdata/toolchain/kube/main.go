// Command kube is the control plane of Kubernetes, the kubelet, kube-proxy, kubectl and
// etcd in one program. The name under which it is called, such as the name of a symbolic
// link, selects the program that runs. If this name is not that of a program, the first
// argument selects the program.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	run := map[string]func(){
		"etcd":                    func() { etcdmain.Main(os.Args) },
		"kube-apiserver":          func() { exit(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() { exit(controllermanager.NewControllerManagerCommand()) },
		"kube-proxy":              func() { exit(proxy.NewProxyCommand()) },
		"kube-scheduler":          func() { exit(scheduler.NewSchedulerCommand()) },
		"kubelet":                 func() { exit(newKubelet()) },
		"kubectl": func() {
			if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
				kubectlutil.CheckErr(err)
			}
		},
	}
	name := filepath.Base(os.Args[0])
	if run[name] == nil && len(os.Args) > 1 {
		name, os.Args = os.Args[1], os.Args[1:]
	}
	if run[name] == nil {
		fmt.Fprintln(os.Stderr, "usage: kube etcd|kube-apiserver|kube-controller-manager|kube-proxy|"+
			"kube-scheduler|kubelet|kubectl [args]")
		os.Exit(2)
	}
	run[name]()
}

func exit(command *cobra.Command) { os.Exit(cli.Run(command)) }
