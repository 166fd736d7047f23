package podtemplate

import (
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// volumeSources are the kinds of volumes.
var volumeSources = []string{
	"awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI",
	"emptyDir", "ephemeral", "fc", "flexVolume", "flocker",
	"gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image", "iscsi", "nfs", "persistentVolumeClaim",
	"photonPersistentDisk", "portworxVolume", "projected",
	"quobyte", "rbd", "scaleIO", "secret", "storageos", "vsphereVolume",
}

func (r rules) volumeRules() {
	list := r.spec.get("volumes").entries()
	r.unique(list, "name", map[string]bool{})
	for _, volume := range list {
		if volume.blank() {
			continue
		}
		r.volumes[volume.get("name").text()] = volume
		switch found := volume.keys(volumeSources...); len(found) {
		case 1:
		case 0:
			r.warn(volume.v.At, volume.path, "has no source, and becomes an empty folder",
				"write emptyDir: {} if that is meant")
		default:
			r.wrong(volume, "must have one source, and has "+strings.Join(found, ", "), "keep one of them")
		}
		r.notNegative(volume.get("emptyDir", "sizeLimit"))
		for _, item := range volume.get("downwardAPI", "items").entries() {
			r.exactlyOne(item, "a reference", "fieldRef", "resourceFieldRef")
			r.reference(item, true)
		}
		r.projected(volume.get("projected"))
		r.rareVolume(volume)
	}
}

func (r rules) projected(n node) {
	paths := map[string]bool{}
	once := func(v node) {
		if word := v.text(); word != "" {
			if paths[word] {
				r.wrong(v, "is used twice in this volume", "give each file a path of its own")
			}
			paths[word] = true
		}
	}
	for _, source := range n.get("sources").entries() {
		if found := source.keys("clusterTrustBundle", "configMap", "downwardAPI", "podCertificate", "secret",
			"serviceAccountToken"); len(found) > 1 {
			r.wrong(source, "must have one kind of content, and has "+strings.Join(found, ", "),
				"put a dash before each")
		}
		for _, kind := range []string{"secret", "configMap", "downwardAPI"} {
			for _, item := range source.get(kind, "items").entries() {
				once(item.get("path"))
				if kind == "downwardAPI" {
					r.exactlyOne(item, "a reference", "fieldRef", "resourceFieldRef")
					r.reference(item, true)
				}
			}
		}
		if certificate, ok := source.at("podCertificate"); ok {
			files := []string{"certificateChainPath", "credentialBundlePath", "keyPath"}
			if !slices.ContainsFunc(files, func(key string) bool { return certificate.get(key).text() != "" }) {
				r.wrong(certificate, "needs a path", "write one of "+strings.Join(files, ", "))
			}
			for _, key := range files {
				once(certificate.get(key))
			}
		}
		if bundle, ok := source.at("clusterTrustBundle"); ok {
			r.exactlyOne(bundle, "a name", "name", "signerName")
			once(bundle.get("path"))
		}
	}
}

func (r rules) rareVolume(volume node) {
	if fc, ok := volume.at("fc"); ok {
		if (len(fc.get("targetWWNs").entries()) == 0) == (len(fc.get("wwids").entries()) == 0) {
			r.wrong(fc, "must have one of targetWWNs and wwids", "")
		}
		if fc.has("targetWWNs") && !fc.has("lun") {
			r.wrong(fc, "needs lun beside targetWWNs", "")
		}
	}
	if flocker, ok := volume.at("flocker"); ok {
		if (flocker.get("datasetName").text() == "") == (flocker.get("datasetUUID").text() == "") {
			r.wrong(flocker, "must have one of datasetName and datasetUUID", "")
		}
	}
	if iscsi, ok := volume.at("iscsi"); ok &&
		(iscsi.get("chapAuthDiscovery").yes() || iscsi.get("chapAuthSession").yes()) && !iscsi.has("secretRef") {
		r.wrong(iscsi, "needs secretRef for CHAP", "")
	}
	if disk, ok := volume.at("azureDisk"); ok {
		beginning := "https://"
		if disk.get("kind").text() == "Managed" {
			beginning = "/subscriptions/"
		}
		if v := disk.get("diskURI"); v.text() != "" && !strings.HasPrefix(v.text(), beginning) {
			r.wrong(v, "must begin with "+beginning+" for a disk of this kind", "")
		}
	}
	if claim, ok := volume.get("ephemeral").at("volumeClaimTemplate"); ok {
		r.selector(claim.get("spec", "selector"))
		for _, key := range []string{"dataSource", "dataSourceRef"} {
			source := claim.get("spec", key)
			if kind := source.get("kind"); source.get("apiGroup").text() == "" && kind.text() != "" &&
				kind.text() != "PersistentVolumeClaim" {
				r.wrong(kind, "must be PersistentVolumeClaim where there is no apiGroup", "")
			}
		}
		storage := claim.get("spec", "resources", "requests", "storage")
		switch amount, known := quantity(storage.v.Data); {
		case storage.v.Data == nil:
			r.wrong(claim, "needs spec.resources.requests.storage", "write such as storage: 10Gi")
		case known && amount.Sign() <= 0:
			r.wrong(storage, "must be greater than 0", "")
		}
		if t, _ := claim.get("metadata").v.Data.(position.Mapping); t != nil {
			for key, v := range t {
				if !slices.Contains([]string{"labels", "annotations"}, key) {
					r.report(position.RulePodTemplate, v.Key,
						position.Join(claim.path, "metadata."+position.SafeName(key)), "must not be set here",
						"only labels and annotations may be")
				}
			}
		}
	}
}
